import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Forecast } from '../protocol';
import { forecastWords, USUAL_UNITS } from '../words';
import { trans } from './plainTrans';

const NOON = new Date(2026, 5, 1, 12, 0, 5).getTime();

function said(seconds: readonly [number, number, number], finish: 'clock' | 'left' | 'both'): string {
  const [p10_seconds, p50_seconds, p90_seconds] = seconds;
  const forecast = { p10_seconds, p50_seconds, p90_seconds, assumption: 'as_now' } as Forecast;
  return forecastWords(forecast, NOON, NOON, { ...USUAL_UNITS, finish, clock: '24h' }, trans);
}

test('a finish within one minute of the clock still says how sure it is', () => {
  for (const finish of ['clock', 'both'] as const) {
    assert.match(said([20, 30, 45], finish), /^12:00, in 30 s \(20 s to 45 s\)$/);
  }
  assert.equal(said([20, 30, 45], 'left'), 'in 30 s (20 s to 45 s)');
});

test('a later finish is a range of the clock', () => {
  assert.equal(said([3000, 3600, 4200], 'clock'), '13:00 (12:50 to 13:10)');
  assert.equal(said([3000, 3600, 4200], 'both'), '13:00 (12:50 to 13:10), in 1 h 00 min');
});
