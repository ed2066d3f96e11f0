/** Why a job has what it has, and since when. Pure. */
import type { JobView } from './protocol';

/** What was said of a job, and when, in milliseconds since 1970; null: not known. */
export interface Said {
  readonly reason: string;
  readonly at: number | null;
}

/**
 * The reasons of a job, newest last, with their times.
 *
 * @param madeAt - when the job was asked for, in milliseconds since 1970.
 */
export function reasonsWithTimes(job: Pick<JobView, 'reasons' | 'reason_ages_seconds'>, madeAt: number): Said[] {
  const timeless = job.reasons.length - job.reason_ages_seconds.length;
  return job.reasons.map((reason, i) => ({
    reason,
    at: i < timeless ? null : madeAt - 1000 * job.reason_ages_seconds[i - timeless]
  }));
}
