import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decisionsOf, seen } from '../decisions';
import { jobOfNotebook } from '../notebookJob';
import { isTroubled, jobOn, loadWords, processWords, strangersMemoryWords, toldOpenly } from '../onDevices';
import type { AuctionView, ClusterView, DeviceView, JobView, RunView } from '../protocol';
import { UntoldEnds } from '../untold';
import { deviceWords, shortId, USUAL_UNITS } from '../words';
import { trans } from './plainTrans';

const GIB = 2 ** 30;

function device(part: Partial<DeviceView>): DeviceView {
  const plain = {
    id: 'GPU-8f6c2f6e-0000', node: 'box', index: 0, model: 'A100', kind: 'gpu', state: 'held', since_seconds: 60, cores: [], account: 'ada',
    detail: '', free_when: '', memory_bytes: 80 * GIB, memory_used_bytes: 43 * GIB, utilisation: 0.5, processes: [], strangers: []
  };
  return { ...plain, ...part } as DeviceView;
}

const eves = { pid: 7, started: 1, session: 0, account: 'eve', used_bytes: 40 * GIB, command: 'python', parents: [] };
const mine = { ...eves, pid: 5, account: 'ada', used_bytes: 3 * GIB };

test('a stranger on a held device is said with what it takes', () => {
  const shared = device({ processes: [eves, mine], strangers: [7] });
  assert.equal(processWords(eves, shared, USUAL_UNITS, trans), 'process 7 (python) of eve: 40.0 GiB, without a lease');
  assert.equal(processWords(mine, shared, USUAL_UNITS, trans), 'process 5 (python) of ada: 3.0 GiB');
  assert.equal(strangersMemoryWords(shared, USUAL_UNITS, trans), '40.0 GiB of its 80.0 GiB of memory is taken by who has no lease of it');
  assert.equal(loadWords(shared, USUAL_UNITS, trans), '43.0 GiB of 80.0 GiB of memory in use, 50% busy');
});

test('what a node does not tell is not said', () => {
  const slot = device({ kind: 'cpu', id: 'box/cpu3', index: 3, memory_bytes: null, memory_used_bytes: null, utilisation: null });
  assert.equal(loadWords(slot, USUAL_UNITS, trans), '');
  assert.equal(strangersMemoryWords(slot, USUAL_UNITS, trans), '');
  assert.equal(deviceWords(slot, trans), 'CPU slot 3 on box');
  const unnamed = { ...eves, account: null, command: '', used_bytes: null };
  assert.equal(processWords(unnamed, slot, USUAL_UNITS, trans), 'process 7 of somebody unknown');
});

test('a GPU is called as nvidia-smi counts it, a part of one by both numbers', () => {
  assert.equal(deviceWords(device({ index: 3 }), trans), 'GPU 3 on box (A100)');
  assert.equal(deviceWords(device({ id: 'MIG-0', index: 302 }), trans), 'GPU 3, part 2 (MIG) on box (A100)');
  assert.equal(shortId('GPU-8f6c2f6e-2f6e-0000'), 'GPU-8f6c2f6e');
  assert.equal(shortId('box/cpu3'), '');
});

test('a user is told of trouble on their own devices, an administrator of all', () => {
  const devices = [
    device({ id: 'a' }), device({ id: 'b', strangers: [7], processes: [eves] }), device({ id: 'c', account: 'bob', strangers: [7] }),
    device({ id: 'd', account: null, state: 'quarantined' }), device({ id: 'e', account: null, state: 'free' }),
    device({ id: 'f', account: null, state: 'free', free_when: 'it was sick' })
  ];
  const cluster = { devices } as unknown as ClusterView;
  const ids = (isAdmin: boolean) => toldOpenly(cluster, 'ada', isAdmin).map(found => found.id);
  assert.deepEqual(ids(false), ['b']);
  assert.deepEqual(ids(true), ['b', 'c', 'd', 'f']);
  assert.ok(isTroubled(devices[3]));
});

test('the job on a device is one that may be seen', () => {
  const job = { job: 'job-1', name: 'train', devices: [{ id: 'GPU-8f6c2f6e-0000' }] } as unknown as JobView;
  assert.equal(jobOn(device({}), [job])?.name, 'train');
  assert.equal(jobOn(device({ id: 'GPU-1' }), [job]), null);
});

test('a renamed notebook keeps its job, by its kernel', () => {
  const jobs = [{ job: 'old' }, { job: 'new' }] as unknown as JobView[];
  const runs = [
    { job: 'old', notebook: 'copy.ipynb', kernel_id: 'k0' }, { job: 'new', notebook: 'before.ipynb', kernel_id: 'k1' },
    { job: 'gone', notebook: 'copy.ipynb', kernel_id: 'k1' }, { job: null, notebook: null, kernel_id: null }
  ] as unknown as RunView[];
  assert.equal(jobOfNotebook(runs, jobs, 'renamed.ipynb', 'k1')?.job, 'new');
  assert.equal(jobOfNotebook(runs, jobs, 'copy.ipynb', 'k1')?.job, 'new');
  assert.equal(jobOfNotebook(runs, jobs, 'copy.ipynb', 'restarted')?.job, 'old');
  assert.equal(jobOfNotebook(runs, jobs, 'other.ipynb', null), null);
});

test('what auctions decided again and again is one line', () => {
  const auction = (number: number, ago: number, devices: number, reason: string) =>
    ({
      number, ago_seconds: ago,
      awards: [{ job: 'j', account: 'ada', devices, reason }, { job: 'x', account: 'eve', devices: 1, reason: 'sealed' }]
    }) as unknown as AuctionView;
  const told = [auction(4, 1, 2, 'kept'), auction(3, 2, 2, 'kept'), auction(2, 3, 1, 'worse off'), auction(1, 4, 2, 'kept')];
  const found = decisionsOf(told.map(one => seen(one, 'ada', 10_000)));
  assert.deepEqual(found, [
    { job: 'j', devices: 2, reason: 'kept', from: 8000, to: 9000 },
    { job: 'j', devices: 1, reason: 'worse off', from: 7000, to: 7000 },
    { job: 'j', devices: 2, reason: 'kept', from: 6000, to: 6000 }
  ]);
});

test('however many jobs end at once, each end is told once', async () => {
  const job = (id: string, state: string) => ({ job: id, account: 'ada', state }) as unknown as JobView;
  const names = ['a', 'b', 'c', 'd', 'e', 'f', 'g'];
  const state = { isKnown: true, jobs: names.map(id => job(id, 'running')), ended: [] as JobView[] };
  const model = { state, account: 'ada' } as unknown as ConstructorParameters<typeof UntoldEnds>[0];
  let asked = 0;
  const source = { jobs: async () => ((asked += 1), { kind: 'ok', value: names.map(id => job(id, 'ended')), etag: null } as const) };
  const told: string[][] = [];
  const untold = new UntoldEnds(model, source as never, ended => told.push(ended.map(one => one.job)));
  untold.look();
  state.jobs = [];
  state.ended = ['a', 'b', 'c', 'd', 'e'].map(id => job(id, 'ended'));
  untold.look();
  untold.look();
  await new Promise(resolve => setImmediate(resolve));
  assert.deepEqual(told, [['f', 'g']]);
  assert.equal(asked, 1);
});
