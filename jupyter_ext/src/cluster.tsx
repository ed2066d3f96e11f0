/** The cluster: who holds how many, what is free, what is not as it should be, when the next auction is. */
import React from 'react';
import { DeviceList, Troubled } from './devices';
import type { ClusterView } from './protocol';
import { Section, type ViewProps } from './view';
import { brokerWords, deviceCountWords, durationWords } from './words';

export function ClusterSection(props: ViewProps): JSX.Element | null {
  const { room, state } = props;
  const { trans } = room;
  const cluster = state.cluster;
  if (cluster === null) {
    return state.isKnown && state.trouble === null ? (
      <Section title={trans.__('Cluster')}>
        <p role="status">{trans.__('Asking the broker...')}</p>
      </Section>
    ) : null;
  }
  return (
    <Section title={trans.__('Cluster')}>
      {cluster.devices.length === 0 ? <NoDevices {...props} /> : <Overview cluster={cluster} {...props} />}
      <Broker {...props} />
    </Section>
  );
}

/** A machine without a GPU has CPU slots; with nothing at all, its node does not report. */
function NoDevices({ room }: ViewProps): JSX.Element {
  const { trans } = room;
  return (
    <>
      <p>{trans.__('No machine has reported a device to the broker.')}</p>
      <p>{trans.__('A machine without a GPU is offered as CPU slots, so it is not for want of one: the machine that trains does not report, or has just begun. "selfsched doctor" in a terminal says what it finds there. What you start now waits.')}</p>
    </>
  );
}

function Overview(props: ViewProps & { cluster: ClusterView }): JSX.Element {
  const { room, state, now, cluster } = props;
  const { trans } = room;
  const free = cluster.devices.filter(device => device.state === 'free').length;
  const next = Math.max(0, cluster.next_tick_seconds - (now - state.clusterAt) / 1000);
  return (
    <>
      <p>
        {trans.__('%1 of %2 free; %3 running, %4 waiting.', free, deviceCountWords(cluster.devices.length, trans), cluster.running_jobs, cluster.waiting_jobs)}
      </p>
      <p>{trans.__('Next auction in %1, by the policy %2.', durationWords(next, trans), cluster.policy)}</p>
      <Holders {...props} />
      <Troubled {...props} />
      <DeviceList {...props} />
    </>
  );
}

function Holders({ room, cluster }: ViewProps & { cluster: ClusterView }): JSX.Element | null {
  const { trans } = room;
  const holders = new Map<string, number>();
  for (const device of cluster.devices) {
    if (device.account !== null) {
      holders.set(device.account, (holders.get(device.account) ?? 0) + 1);
    }
  }
  return holders.size === 0 ? null : (
    <table>
      <thead>
        <tr>
          <th scope="col">{trans.__('Who')}</th>
          <th scope="col">{trans.__('Devices')}</th>
        </tr>
      </thead>
      <tbody>
        {[...holders].sort((a, b) => b[1] - a[1]).map(([account, count]) => (
          <tr key={account}>
            <td>
              <bdi>{account}</bdi>
            </td>
            <td>{count}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Which broker is shown. It is chosen where the server is set up, never here: your token goes to it. */
function Broker({ room, state }: ViewProps): JSX.Element | null {
  const { trans } = room;
  const broker = state.hello?.broker;
  return broker === undefined || broker.url === null ? null : (
    <details>
      <summary>{trans.__('Which broker')}</summary>
      <p>
        <bdi>{broker.url}</bdi>, {brokerWords(broker.kind, trans)}
      </p>
      <p>{trans.__('To ask another one, set SELFSCHED_BROKER before JupyterLab starts, or write broker = "..." into ~/.config/selfsched/config.toml. It is no setting of this page: your token goes to it.')}</p>
    </details>
  );
}
