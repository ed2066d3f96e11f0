/** Holds the panel's rules to those of the Python package, by the table that it is tested by too. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import type { JobView } from '../protocol';
import { timesByHours, timesLike, type Times } from '../wholeRun';

interface Cases {
  readonly by_hours: readonly { hours: number; on: number; asked: number[]; times: Times }[];
  readonly like_a_running_job: readonly { fraction_done: number; rows: [number, number, number | null][]; times: Times | null }[];
}

const table = join(__dirname, '..', '..', '..', '..', 'tests', 'core', 'whole_run_cases.json');
const cases = JSON.parse(readFileSync(table, 'utf8')) as Cases;

function areAlike(found: Times, wanted: Times): void {
  assert.deepEqual(found.map(([n]) => n), wanted.map(([n]) => n));
  found.forEach(([, seconds], i) => assert.ok(Math.abs(seconds / wanted[i][1] - 1) < 1e-9, `${seconds} is not ${wanted[i][1]}`));
}

test('times by hours are those of the table', () => {
  for (const { hours, on, asked, times } of cases.by_hours) {
    areAlike(timesByHours(hours, on, asked), times);
  }
});

test('times like a running job are those of the table', () => {
  for (const { fraction_done, rows, times } of cases.like_a_running_job) {
    const bid = { rows: rows.map(([devices, nodes, remaining_seconds]) => ({ placement: { devices, nodes, model: null }, remaining_seconds })) };
    const found = timesLike({ fraction_done, bid } as unknown as JobView);
    if (times === null || found === null) {
      assert.equal(found, times);
    } else {
      areAlike(found, times);
    }
  }
});
