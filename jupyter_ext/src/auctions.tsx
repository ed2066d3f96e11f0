/** Past auctions: what each decided for the user's jobs, and why. */
import React, { useState } from 'react';
import { decisionsOf, seen, type Seen } from './decisions';
import { faultTitle, type Fault } from './faults';
import { nameWords } from './orders';
import type { AuctionView } from './protocol';
import type { Room, ViewProps } from './view';
import { clockWords } from './words';

/** Auctions of one look back; the broker keeps the last some hundred. */
const AT_ONCE = 10;
const MOST_ROWS = 200;

export function AuctionsView(props: ViewProps & { readonly names: ReadonlyMap<string, string> }): JSX.Element {
  const { room, now, names } = props;
  const { trans, units } = room;
  const [auctions, setAuctions] = useState<readonly Seen[] | null>(null);
  const [isAtEnd, setAtEnd] = useState(false);
  const [trouble, setTrouble] = useState('');
  const [isAsking, setAsking] = useState(false);
  const decisions = decisionsOf(auctions ?? []);

  async function look(): Promise<void> {
    setAsking(true);
    const before = auctions ?? [];
    const oldest = before[before.length - 1];
    const { found, fault } = oldest === undefined ? await newest(room) : await older(room, oldest.number - 1);
    const account = room.model.account;
    if (fault === null || found.length > 0) {
      setAuctions([...before, ...found.map(auction => seen(auction, account, Date.now()))]);
    }
    setAtEnd(fault === null && found.length < AT_ONCE);
    setTrouble(fault === null ? '' : faultTitle(fault, trans));
    setAsking(false);
  }

  return (
    <>
      <h3>{trans.__('Past auctions')}</h3>
      {auctions !== null && decisions.length === 0 && <p>{trans.__('The auctions looked at had no job of yours.')}</p>}
      {decisions.length > 0 && (
        <table>
          <thead>
            <tr>
              <th scope="col">{trans.__('When')}</th>
              <th scope="col">{trans.__('Job')}</th>
              <th scope="col">{trans.__('Devices')}</th>
              <th scope="col">{trans.__('Why')}</th>
            </tr>
          </thead>
          <tbody>
            {decisions.slice(0, MOST_ROWS).map((one, i) => (
              <tr key={i}>
                <td>
                  {one.from === one.to
                    ? clockWords(one.to, now, units)
                    : trans.__('%1 to %2', clockWords(one.from, now, units), clockWords(one.to, now, units))}
                </td>
                <td>{nameWords(names.get(one.job) ?? one.job)}</td>
                <td>{one.devices}</td>
                <td>{one.reason}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {trouble !== '' && <p role="status">{trouble}</p>}
      {!isAtEnd && decisions.length < MOST_ROWS && (
        <button disabled={isAsking} onClick={() => void look()}>
          {auctions === null ? trans.__('Show past auctions') : trans.__('Look further back')}
        </button>
      )}
    </>
  );
}

type Found = { readonly found: readonly AuctionView[]; readonly fault: Fault | null };

async function newest({ api }: Room): Promise<Found> {
  const answer = await api.view<readonly AuctionView[]>(`auctions?last=${AT_ONCE}`);
  return answer.kind === 'ok' ? { found: answer.value, fault: null } : { found: [], fault: answer.kind === 'fault' ? answer.fault : null };
}

/** One by one: each holds the rows of all jobs of its time. What the broker has forgotten is the end. */
async function older({ api }: Room, from: number): Promise<Found> {
  const found: AuctionView[] = [];
  for (let number = from; number > Math.max(0, from - AT_ONCE); number--) {
    const answer = await api.view<AuctionView>(`auctions/${number}`);
    if (answer.kind === 'ok') {
      found.push(answer.value);
    } else if (answer.kind === 'fault') {
      return { found, fault: answer.fault.status === 404 ? null : answer.fault };
    }
  }
  return { found, fault: null };
}
