/** What past auctions decided for an account's jobs. Pure. */
import type { AuctionView } from './protocol';

/** What one auction, or several in a row, decided for one job. */
export interface Decision {
  readonly job: string;
  readonly devices: number;
  readonly reason: string;
  /** Milliseconds since 1970, of the first and the last auction that decided so. */
  readonly from: number;
  readonly to: number;
}

/** An auction as far as it concerns an account. */
export interface Seen {
  readonly number: number;
  /** Milliseconds since 1970. */
  readonly at: number;
  readonly awards: AuctionView['awards'];
}

/** Of an auction told at `now` (milliseconds since 1970), the rows of an account. */
export function seen(auction: AuctionView, account: string | null, now: number): Seen {
  const awards = auction.awards.filter(award => award.account === account);
  return { number: auction.number, at: now - 1000 * auction.ago_seconds, awards };
}

/** What auctions, newest first, decided for each job, newest first; what was decided again and again is one line. */
export function decisionsOf(auctions: readonly Seen[]): Decision[] {
  const found: Decision[] = [];
  const last = new Map<string, number>();
  for (const { at, awards } of auctions) {
    for (const { job, devices, reason } of awards) {
      const index = last.get(job) ?? -1;
      const later = found[index];
      if (later !== undefined && later.devices === devices && later.reason === reason) {
        found[index] = { ...later, from: at };
      } else {
        last.set(job, found.push({ job, devices, reason, from: at, to: at }) - 1);
      }
    }
  }
  return found;
}
