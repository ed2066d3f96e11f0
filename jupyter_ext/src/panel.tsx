/** The side panel: trouble, my jobs, the cluster, what if, history. */
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import React, { useEffect, useState } from 'react';
import { Boundary } from './boundary';
import { ClusterSection } from './cluster';
import { HistorySection } from './history';
import { devicesIcon } from './icon';
import { JobsView } from './jobs';
import type { State } from './model';
import { TroubleView, type Room, type ViewProps } from './view';
import { WhatIfSection } from './whatIf';

const CLOCK_SECONDS = 5;
/** Each with what it is made of. */
const PARTS: readonly (readonly [React.ComponentType<ViewProps>, (state: State) => unknown])[] = [
  [TroubleView, state => state.trouble],
  [JobsView, state => state.jobs],
  [ClusterSection, state => state.cluster],
  [WhatIfSection, state => state.jobs],
  [HistorySection, state => state.hello]
];

export class Panel extends ReactWidget {
  constructor(private readonly _room: Room) {
    super();
    this.id = 'selfsched-panel';
    this.title.icon = devicesIcon;
    this.title.caption = _room.trans.__('Devices and jobs (selfsched)');
    this.addClass('jp-selfsched-panel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', this.title.caption);
    this.node.tabIndex = -1;
  }

  protected render(): JSX.Element {
    return <UseSignal signal={this._room.model.changed}>{() => <Whole room={this._room} />}</UseSignal>;
  }
}

function Whole({ room }: { room: Room }): JSX.Element {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), CLOCK_SECONDS * 1000);
    return () => clearInterval(timer);
  }, []);
  const { state } = room.model;
  const props = { room, state, now: Math.max(now, state.jobsAt, state.clusterAt) };
  return (
    <div>
      {PARTS.map(([Part, shows], i) => (
        <Boundary key={i} trans={room.trans} shows={shows(state)}>
          <Part {...props} />
        </Boundary>
      ))}
    </div>
  );
}
