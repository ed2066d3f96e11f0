/** Jobs that have ended, as somebody looks for them: by name. Pure. */
import type { JobView } from './protocol';

/**
 * Of jobs with one name and account the one that ended last, and none whose name a live job has: a second
 * `fit` of a Trainer goes on as a job of the same name.
 *
 * @param ended - newest first.
 * @param live - jobs that have not ended.
 */
export function lastOfEachName(ended: readonly JobView[], live: readonly JobView[]): JobView[] {
  const seen = new Set(live.map(nameAndAccount));
  return ended.filter(job => {
    const name = nameAndAccount(job);
    const isNew = !seen.has(name);
    seen.add(name);
    return isNew;
  });
}

function nameAndAccount(job: JobView): string {
  return JSON.stringify([job.account, job.name]);
}
