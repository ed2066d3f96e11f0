/**
 * How long a run that has not begun may take on each device count, from what a person can say of it.
 *
 * The rules are those of `selfsched/core/whole_run.py`: by hours on some devices, speed goes with
 * devices^0.85; like another job, what its bid says is left, over the part that is left.
 */
import type { JobView } from './protocol';

export const SPEED_EXPONENT = 0.85;
/** Device counts of one question. */
export const MOST_COUNTS = 8;
/** With less of a run left, what is left says nothing of the whole. */
export const LEAST_LEFT = 0.02;

/** Seconds of a whole run on each device count, ascending. */
export type Times = readonly (readonly [number, number])[];

/** Of a run that takes so long on some devices; the counts asked about and `on` are in it. */
export function timesByHours(hours: number, on: number, counts: readonly number[]): Times {
  const wanted = [...new Set([...counts.slice(0, MOST_COUNTS - 1), on])].sort((a, b) => a - b);
  return wanted.map(n => [n, hours * 3600 * (on / n) ** SPEED_EXPONENT]);
}

/** Of a run like this one; null where it has not measured itself, or is as good as done. */
export function timesLike(job: JobView): Times | null {
  const left = 1 - job.fraction_done;
  const best = new Map<number, number>();
  for (const row of left < LEAST_LEFT ? [] : job.bid?.rows ?? []) {
    if (row.remaining_seconds !== null) {
      const n = row.placement.devices;
      best.set(n, Math.min(best.get(n) ?? Infinity, row.remaining_seconds / left));
    }
  }
  const times = [...best].sort(([a], [b]) => a - b).slice(0, MOST_COUNTS);
  return times.length > 0 ? times : null;
}

/** Device counts as people type them: `1, 2, 4`; null where it is no such list. */
export function parseCounts(text: string): number[] | null {
  const parts = text.split(/[\s,;]+/).filter(part => part !== '');
  const counts = parts.map(Number);
  const areCounts = counts.every(n => Number.isInteger(n) && n >= 1 && n <= 65_536);
  return areCounts && counts.length > 0 && counts.length <= MOST_COUNTS ? [...new Set(counts)] : null;
}
