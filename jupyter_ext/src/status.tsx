/** The item in the status bar: devices held, finish, a colour for trouble; a click opens the panel. */
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import React from 'react';
import { Boundary } from './boundary';
import { faultTitle, isNoBroker } from './faults';
import type { State } from './model';
import type { Room } from './view';
import { clockWords, deviceCountWords, durationWords, type Trans } from './words';

/** What the item says, and whether it is trouble or waiting. */
export function statusWords(room: Room, state: State, now: number): { readonly text: string; readonly mood: 'fine' | 'waiting' | 'trouble' } {
  const { trans, units } = room;
  if (state.trouble !== null) {
    return { text: `selfsched: ${faultTitle(state.trouble.fault, trans)}`, mood: isNoBroker(state.trouble.fault) ? 'fine' : 'trouble' };
  }
  if (!state.isKnown) {
    return { text: trans.__('selfsched: asking...'), mood: 'fine' };
  }
  const mine = state.jobs.filter(job => job.account === room.model.account);
  const held = mine.reduce((sum, job) => sum + job.devices.length, 0);
  const running = mine.filter(job => job.devices.length > 0 && job.forecast !== null);
  const last = Math.max(0, ...running.map(job => job.forecast?.p50_seconds ?? 0));
  const left = Math.max(0, last - (now - state.jobsAt) / 1000);
  const waits = mine.some(job => job.state === 'waiting');
  const text = [
    trans.__('selfsched: %1', deviceCountWords(held, trans)),
    running.length === 0 ? '' : trans.__('done %1 (%2)', clockWords(now + left * 1000, now, units), durationWords(left, trans)),
    waits ? trans.__('waiting') : ''
  ];
  return { text: text.filter(Boolean).join(', '), mood: waits && held === 0 ? 'waiting' : 'fine' };
}

interface Told {
  readonly trans: Trans;
  readonly open: () => void;
}

function Now({ room, ...told }: Told & { readonly room: Room }): JSX.Element {
  return <Item {...statusWords(room, room.model.state, Date.now())} {...told} />;
}

function Item({ text, mood, trans, open }: Told & { readonly text: string; readonly mood: string }): JSX.Element {
  return (
    <button className={`jp-selfsched-status${mood === 'fine' ? '' : ` jp-mod-${mood}`}`} onClick={open} title={trans.__('%1: open the panel', text)}>
      <span className="jp-StatusBar-TextItem">{text}</span>
    </button>
  );
}

export class StatusItem extends ReactWidget {
  constructor(private readonly _room: Room, private readonly _open: () => void) {
    super();
    this.addClass('jp-selfsched-status-item');
  }

  protected render(): JSX.Element {
    const room = this._room;
    const told = { trans: room.trans, open: this._open };
    return (
      <UseSignal signal={room.model.changed}>
        {() => (
          <Boundary trans={room.trans} shows={room.model.state.jobs} instead={<Item text={room.trans.__('selfsched: cannot be shown')} mood="trouble" {...told} />}>
            <Now room={room} {...told} />
          </Boundary>
        )}
      </UseSignal>
    );
  }
}
