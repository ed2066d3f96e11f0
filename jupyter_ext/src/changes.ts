/** What happened to jobs between two looks at them. Pure. */
import type { JobView } from './protocol';

export type ChangeKind = 'started' | 'grew' | 'shrank' | 'lost_all' | 'ended';

/** One thing that a user may want to hear of. */
export interface Change {
  readonly kind: ChangeKind;
  readonly job: JobView;
  readonly before: number;
  readonly after: number;
}

/**
 * What happened, in the order of the jobs as they are now.
 *
 * @param before - jobs as they were; of a job that was not among them it is told what it has already.
 * @param after - jobs as they are, with those that ended.
 * @param account - whose jobs count.
 */
export function changesBetween(before: readonly JobView[], after: readonly JobView[], account: string): Change[] {
  const known = new Map(before.map(job => [job.job, job]));
  const found: Change[] = [];
  for (const job of after) {
    const was = known.get(job.job);
    const kind = job.account === account ? kindOf(was, job) : null;
    if (kind !== null) {
      found.push({ kind, job, before: was?.devices.length ?? 0, after: job.devices.length });
    }
  }
  return found;
}

function kindOf(was: JobView | undefined, is: JobView): ChangeKind | null {
  if (is.state === 'ended') {
    return was === undefined || was.state === 'ended' ? null : 'ended';
  }
  const [before, after] = [was?.devices.length ?? 0, is.devices.length];
  if (before === after) {
    return null;
  }
  if (after === 0) {
    return 'lost_all';
  }
  return before === 0 ? 'started' : after > before ? 'grew' : 'shrank';
}
