/**
 * How long a run that has not begun may take on each device count, from what a person can say of it.
 *
 * The rules are those of `selfsched/core/whole_run.py`, held to them by one table of cases that both are
 * tested by (`tests/core/whole_run_cases.json`): by hours on some devices, speed goes with devices^0.85;
 * like another job, what its bid says is left, over the part that is left.
 */
import type { JobView } from './protocol';

export const SPEED_EXPONENT = 0.85;
/** Device counts of one question. */
export const MOST_COUNTS = 8;
/** With less of a run left, what is left says nothing of the whole. */
export const LEAST_LEFT = 0.02;
/** A century; the protocol knows no longer time. */
const MOST_SECONDS = 3.2e9;

/** Seconds of a whole run on each device count, ascending. */
export type Times = readonly (readonly [number, number])[];

/**
 * Of a run that takes so long on some devices, and may have up to the most that is asked about.
 *
 * The counts asked about and `on` are in it as far as there is room, and where there is some left, others.
 */
export function timesByHours(hours: number, on: number, asked: readonly number[]): Times {
  const most = Math.max(on, ...asked);
  const first = [...new Set([on, ...asked, ...spread(most)])].slice(0, MOST_COUNTS);
  return first.sort((a, b) => a - b).map(n => [n, Math.min(hours * 3600 * (on / n) ** SPEED_EXPONENT, MOST_SECONDS)]);
}

function spread(most: number): number[] {
  if (most < MOST_COUNTS) {
    return Array.from({ length: most }, (_, i) => i + 1);
  }
  // One is left for the count that the hours are for.
  return Array.from({ length: MOST_COUNTS - 1 }, (_, at) => roundHalfEven(1 + (at * (most - 1)) / (MOST_COUNTS - 2)));
}

/** As Python rounds: a half goes to the even neighbour. */
function roundHalfEven(value: number): number {
  const low = Math.floor(value);
  const isHalf = value - low === 0.5;
  return isHalf ? low + (low % 2) : Math.round(value);
}

/** Of a run like this one; null where it has not measured itself, or is as good as done. */
export function timesLike(job: JobView): Times | null {
  const left = 1 - job.fraction_done;
  const best = new Map<number, number>();
  for (const row of left < LEAST_LEFT ? [] : job.bid?.rows ?? []) {
    if (row.remaining_seconds !== null) {
      const n = row.placement.devices;
      best.set(n, Math.min(best.get(n) ?? MOST_SECONDS, row.remaining_seconds / left));
    }
  }
  const times = [...best].sort(([a], [b]) => a - b);
  return times.length > 0 ? chosen(times) : null;
}

/** At most so many as one question has, spread over all. */
function chosen(times: Times): Times {
  const last = times.length - 1;
  return last < MOST_COUNTS
    ? times
    : Array.from({ length: MOST_COUNTS }, (_, at) => times[roundHalfEven((at * last) / (MOST_COUNTS - 1))]);
}

/** Device counts as people type them: `1, 2, 4`; null where it is no such list. */
export function parseCounts(text: string): number[] | null {
  const parts = text.split(/[\s,;]+/).filter(part => part !== '');
  const counts = parts.map(Number);
  const areCounts = counts.every(n => Number.isInteger(n) && n >= 1 && n <= 65_536);
  return areCounts && counts.length > 0 && counts.length <= MOST_COUNTS ? [...new Set(counts)] : null;
}
