/** Which job belongs to which notebook. Pure. */
import type { JobView, RunView } from './protocol';

/**
 * The live job of a notebook: that of its kernel, which knows the notebook by no name, so that one that was
 * renamed or moved keeps it; else that of its path, whose kernel may have been restarted under the run.
 */
export function jobOfNotebook(runs: readonly RunView[], jobs: readonly JobView[], path: string, kernelId: string | null): JobView | null {
  const ofKernel = runs.filter(run => kernelId !== null && run.kernel_id === kernelId);
  const ofPath = runs.filter(run => run.notebook === path);
  for (const run of [...ofKernel, ...ofPath]) {
    const job = jobs.find(live => live.job === run.job);
    if (job !== undefined) {
      return job;
    }
  }
  return null;
}
