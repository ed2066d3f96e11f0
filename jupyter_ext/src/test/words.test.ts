import assert from 'node:assert/strict';
import { test } from 'node:test';
import { changesBetween } from '../changes';
import { parseCounts } from '../counts';
import { lastOfEachName } from '../ended';
import { Model, type Source, type Surroundings } from '../model';
import type { JobView } from '../protocol';
import { reasonsWithTimes } from '../reasons';
import { briefWords, deviceRangeWords, durationWords } from '../words';
import { trans } from './plainTrans';

function job(part: Partial<JobView>): JobView {
  const plain = { job: 'j1', name: 'train', account: 'ada', state: 'running', devices: [], fraction_done: 0.5, bid: null };
  return { ...plain, ...part } as unknown as JobView;
}

const device = { id: 'n/cpu0' } as never;

test('durations are said as people say them', () => {
  assert.equal(durationWords(42, trans), '42 s');
  assert.equal(durationWords(360, trans), '6 min');
  assert.equal(durationWords(7500, trans), '2 h 05 min');
  assert.equal(durationWords(273_600, trans), '3 d 4 h');
});

test('a job may have one device, or a range of counts', () => {
  assert.equal(deviceRangeWords(1, 4, trans), '1 to 4 devices');
  assert.equal(deviceRangeWords(1, 1, trans), '1 device');
});

test('a job that holds nothing is told apart by whether it was paused', () => {
  assert.equal(briefWords(job({ state: 'paused' }), trans), 'paused');
  assert.equal(briefWords(job({ state: 'waiting' }), trans), 'waits');
});

test('of ended jobs the last of each name is shown, unless a live one has that name', () => {
  const ended = ['c', 'b', 'b', 'a', 'live'].map((name, i) => job({ job: `j${i}`, name, state: 'ended' }));
  const others = job({ job: 'j9', name: 'c', account: 'bob', state: 'ended' });
  const shown = lastOfEachName([...ended, others], [job({ name: 'live' })]).map(one => one.job);
  assert.deepEqual(shown, ['j0', 'j1', 'j3', 'j9']);
});

test('reasons have their times, counted from the newest: of old ones they may be missing', () => {
  const said = reasonsWithTimes({ reasons: ['first', 'second', 'third'], reason_ages_seconds: [60, 5] }, 100_000);
  assert.deepEqual(said.map(one => one.at), [null, 40_000, 95_000]);
});

test('counts are a short list of whole numbers, or nothing', () => {
  assert.deepEqual(parseCounts('1, 2 4'), [1, 2, 4]);
  for (const bad of ['', 'many', '0', '1.5', '1,2,3,4,5,6,7,8,9']) {
    assert.equal(parseCounts(bad), null);
  }
});

test('what happened to my jobs is told, to others nothing', () => {
  const kinds = (was: JobView, is: JobView) => changesBetween([was], [is], 'ada').map(change => change.kind);
  assert.deepEqual(kinds(job({}), job({ devices: [device] })), ['started']);
  assert.deepEqual(kinds(job({ devices: [device, device] }), job({ devices: [device] })), ['shrank']);
  assert.deepEqual(kinds(job({ devices: [device] }), job({})), ['lost_all']);
  assert.deepEqual(kinds(job({}), job({ state: 'ended' })), ['ended']);
  assert.deepEqual(changesBetween([], [job({ devices: [device] })], 'ada').map(change => change.kind), ['started']);
  assert.deepEqual(changesBetween([], [job({ state: 'ended' })], 'ada'), []);
  assert.deepEqual(kinds(job({ account: 'eve' }), job({ account: 'eve', state: 'ended' })), []);
});

/** Time that a test moves on. */
class Clock implements Surroundings {
  at = 1_000_000;
  private _due: { at: number; call: () => void } | null = null;
  now = () => this.at;
  random = () => 1;
  after(milliseconds: number, call: () => void): () => void {
    const mine = { at: this.at + milliseconds, call };
    this._due = mine;
    return () => {
      this._due = this._due === mine ? null : this._due;
    };
  }
  async pass(seconds: number): Promise<void> {
    const end = this.at + seconds * 1000;
    for (;;) {
      for (let i = 0; i < 20; i++) {
        await Promise.resolve();
      }
      if (this._due === null || this._due.at > end) {
        break;
      }
      const due: { at: number; call: () => void } = this._due;
      this._due = null;
      this.at = Math.max(this.at, due.at);
      due.call();
    }
    this.at = end;
  }
}

function broken(code: string, status: number): Source & { asked: number } {
  const fault = { kind: 'fault', fault: { code, status, detail: '', retryAfterSeconds: null } } as const;
  const source = {
    asked: 0,
    hello: async () => ((source.asked += 1), fault),
    jobs: async () => fault,
    job: async () => fault,
    view: async () => ((source.asked += 1), fault)
  };
  return source as unknown as Source & { asked: number };
}

test('a broker that is away for an hour is asked rarely, and it is said since when', async () => {
  const [clock, source] = [new Clock(), broken('broker_unreachable', 503)];
  const model = new Model(source, clock);
  model.start();
  await clock.pass(3600);
  assert.ok(source.asked < 200, `asked ${source.asked} times in an hour`);
  assert.ok(source.asked > 30);
  assert.equal(model.state.trouble?.fault.code, 'broker_unreachable');
  model.dispose();
});

test('what waiting does not mend is not asked for again until somebody says so', async () => {
  const [clock, source] = [new Clock(), broken('not_authenticated', 401)];
  const model = new Model(source, clock);
  model.start();
  await clock.pass(60);
  const asked = source.asked;
  await clock.pass(3600);
  assert.equal(source.asked, asked);
  assert.equal(model.state.trouble?.nextAt, null);
  model.askNow();
  await clock.pass(1);
  assert.ok(source.asked > asked);
  model.dispose();
});

test('a page that is hidden for long rests, and asks again when it is seen', async () => {
  const clock = new Clock();
  let asked = 0;
  const ok = (value: unknown) => ({ kind: 'ok', value, etag: null }) as never;
  const hello = { version: '0', broker: { url: 'http://b', kind: 'set' }, account: { account: 'ada' }, problem: null };
  const source: Source = {
    hello: async () => ok(hello), jobs: async () => ((asked += 1), ok([])), job: async () => ok(job({})),
    view: async () => ok({ devices: [] })
  };
  const model = new Model(source, clock);
  model.start();
  await clock.pass(30);
  model.setVisible(false);
  await clock.pass(1200);
  const before = asked;
  assert.ok(model.state.isAsleep);
  await clock.pass(3600);
  assert.equal(asked, before);
  model.setVisible(true);
  await clock.pass(1);
  assert.ok(asked > before);
  assert.ok(!model.state.isAsleep);
  model.dispose();
});
