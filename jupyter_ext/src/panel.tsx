/** The side panel: trouble, my jobs, the cluster, what if, history. */
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import React, { useEffect, useState } from 'react';
import { ClusterSection } from './cluster';
import { HistorySection } from './history';
import { devicesIcon } from './icon';
import { JobsView } from './jobs';
import { TroubleView, type Room } from './view';
import { WhatIfSection } from './whatIf';

const CLOCK_SECONDS = 5;

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
  const props = { room, state: room.model.state, now: Math.max(now, room.model.state.jobsAt, room.model.state.clusterAt) };
  return (
    <div>
      <TroubleView {...props} />
      <JobsView {...props} />
      <ClusterSection {...props} />
      <WhatIfSection {...props} />
      <HistorySection {...props} />
    </div>
  );
}
