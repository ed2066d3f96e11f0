/** The cluster: who holds how many, what is free, what is not as it should be, when the next auction is. */
import React from 'react';
import type { DeviceView } from './protocol';
import { Section, type ViewProps } from './view';
import { deviceCountWords, deviceStateWords, deviceWords, durationWords, memoryWords } from './words';

const MOST_DEVICES = 128;

export function ClusterSection(props: ViewProps): JSX.Element | null {
  const { room, state, now } = props;
  const { trans } = room;
  const cluster = state.cluster;
  if (cluster === null) {
    return null;
  }
  const holders = new Map<string, number>();
  for (const device of cluster.devices) {
    if (device.account !== null) {
      holders.set(device.account, (holders.get(device.account) ?? 0) + 1);
    }
  }
  const free = cluster.devices.filter(device => device.state === 'free').length;
  const next = Math.max(0, cluster.next_tick_seconds - (now - state.clusterAt) / 1000);
  return (
    <Section title={trans.__('Cluster')}>
      <p>
        {trans.__('%1 of %2 free; %3 running, %4 waiting.', free, deviceCountWords(cluster.devices.length, trans), cluster.running_jobs, cluster.waiting_jobs)}
      </p>
      <p>{trans.__('Next auction in %1, by the policy %2.', durationWords(next, trans), cluster.policy)}</p>
      {holders.size > 0 && (
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
      )}
      <details>
        <summary>{trans.__('Devices')}</summary>
        <ul>
          {cluster.devices.slice(0, MOST_DEVICES).map(device => (
            <li key={device.id} title={device.id}>
              {deviceWords(device, trans)}: {deviceStateWords(device, trans)}
              {device.detail !== '' && ` (${device.detail})`}
              <Load device={device} {...props} />
            </li>
          ))}
        </ul>
        {cluster.devices.length > MOST_DEVICES && <p>{trans.__('and %1 more', cluster.devices.length - MOST_DEVICES)}</p>}
      </details>
    </Section>
  );
}

/** What a node's report says of one device: nothing is shown of what it does not have. */
function Load({ device, room }: ViewProps & { device: DeviceView }): JSX.Element {
  const { trans, units } = room;
  const parts = [
    device.utilisation === null ? '' : trans.__('%1% busy', Math.round(100 * device.utilisation)),
    device.memory_used_bytes === null ? '' : trans.__('%1 in use', memoryWords(device.memory_used_bytes, units))
  ].filter(Boolean);
  return (
    <>
      {parts.length > 0 && `; ${parts.join(', ')}`}
      {device.processes.length > 0 && (
        <ul>
          {device.processes.slice(0, 20).map(process => (
            <li key={process.pid}>
              {trans.__('process %1 of %2', process.pid, process.account ?? trans.__('somebody unknown'))}
              {process.used_bytes !== null && `: ${memoryWords(process.used_bytes, units)}`}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
