/** Device counts as people type them. Pure. */

/** Of one question. */
const MOST_COUNTS = 8;
export const MOST_DEVICES = 65_536;

/** `1, 2, 4`; null where it is no such list. */
export function parseCounts(text: string): number[] | null {
  const parts = text.split(/[\s,;]+/).filter(part => part !== '');
  const counts = parts.map(Number);
  const areCounts = counts.every(n => Number.isInteger(n) && n >= 1 && n <= MOST_DEVICES);
  return areCounts && counts.length > 0 && counts.length <= MOST_COUNTS ? [...new Set(counts)] : null;
}
