/** What every view is given, and the small pieces that they share. */
import React from 'react';
import type { Api } from './api';
import { faultAdvice, faultTitle, isNoBroker } from './faults';
import type { Model, State } from './model';
import { clockWords, durationWords, type Trans, type Units } from './words';

/** The page's one model and what it is shown with. */
export interface Room {
  readonly api: Api;
  readonly model: Model;
  readonly trans: Trans;
  units: Units;
}

export interface ViewProps {
  readonly room: Room;
  readonly state: State;
  /** Milliseconds since 1970. */
  readonly now: number;
}

/** What is wrong, since when, what to do, and the button that asks again. */
export function TroubleView({ room, state, now }: ViewProps): JSX.Element | null {
  const { trans, units } = room;
  const trouble = state.trouble;
  if (trouble === null) {
    return state.isAsleep ? <p role="status">{trans.__('Resting while the page is hidden.')}</p> : null;
  }
  const mild = isNoBroker(trouble.fault);
  const lasted = (now - trouble.since) / 1000;
  return (
    <div className={`jp-selfsched-trouble${mild ? ' jp-mod-mild' : ''}`} role={mild ? 'status' : 'alert'}>
      <strong>{faultTitle(trouble.fault, trans)}</strong>
      <p>{faultAdvice(trouble.fault, trans)}</p>
      {!mild && lasted > 60 && <p>{trans.__('Since %1, for %2.', clockWords(trouble.since, now, units), durationWords(lasted, trans))}</p>}
      {!mild && state.jobsAt > 0 && <p>{trans.__('What is shown is of %1.', clockWords(state.jobsAt, now, units))}</p>}
      {trouble.nextAt === null && <p>{trans.__('It is not asked again by itself.')}</p>}
      <button onClick={() => room.model.askNow()}>{trans.__('Try again')}</button>
    </div>
  );
}

/** What a list of many leaves out for now, and the button that shows some of it. */
export function More({ left, show, trans }: { left: number; show: () => void; trans: Trans }): JSX.Element | null {
  return left <= 0 ? null : (
    <>
      <p>{trans.__('and %1 more', left)}</p>
      <button onClick={show}>{trans.__('Show more')}</button>
    </>
  );
}

/** A heading with its part of the panel, that a screen reader can jump to. */
export function Section(props: { title: string; children: React.ReactNode }): JSX.Element {
  return (
    <section aria-label={props.title}>
      <h2>{props.title}</h2>
      {props.children}
    </section>
  );
}
