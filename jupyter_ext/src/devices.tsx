/** Devices one by one: whose each is, what is on it, and what must happen before it is offered again. */
import React, { useEffect, useState } from 'react';
import { isTroubled, jobOn, loadWords, processWords, strangersMemoryWords, strangersOn, toldOpenly } from './onDevices';
import { nameWords } from './orders';
import type { ClusterView, DeviceView } from './protocol';
import { More, type ViewProps } from './view';
import { deviceStateWords, deviceWords, shortId } from './words';

const DEVICES_AT_ONCE = 64;
const MOST_TOLD = 20;
const MOST_PROCESSES = 20;
/** What a node says of memory and use is no news that the panel is woken for: while somebody looks, it is asked. */
const LOOK_SECONDS = 5;

type ClusterProps = ViewProps & { readonly cluster: ClusterView };
type DeviceProps = ViewProps & { readonly device: DeviceView };

/** What is not as it should be: for a user on devices of their own, for an administrator on all. */
export function Troubled(props: ClusterProps): JSX.Element | null {
  const { room, state, cluster } = props;
  const { trans } = room;
  const account = state.hello?.account;
  const told = toldOpenly(cluster, account?.account ?? null, account?.admin ?? false);
  const others = cluster.devices.filter(device => isTroubled(device) && !told.includes(device)).length;
  const hasStrangers = told.some(device => device.strangers.length > 0);
  return (
    <>
      {told.length > 0 && (
        <ul className="jp-selfsched-troubled" aria-label={trans.__('Devices that are not as they should be')}>
          {told.slice(0, MOST_TOLD).map(device => (
            <li key={device.id}>
              <DeviceName device={device} {...props} />: {deviceStateWords(device, trans)}
              <Outside device={device} {...props} />
              <Remedy device={device} {...props} />
            </li>
          ))}
        </ul>
      )}
      {told.length > MOST_TOLD && <p>{trans.__('and %1 more', told.length - MOST_TOLD)}</p>}
      {hasStrangers && (
        <p>
          {trans.__('What was started without selfsched is left alone, and cannot be taken over: its owner ends it and starts it again, with "selfsched run --fixed --time 2h -- COMMAND".')}
        </p>
      )}
      {others > 0 && (
        <p>{trans._n('%1 device is left out of offers, or has somebody on it without a lease; see Devices.', '%1 devices are left out of offers, or have somebody on them without a lease; see Devices.', others)}</p>
      )}
    </>
  );
}

/** All devices; while it is open, with what their nodes said a moment ago. */
export function DeviceList(props: ClusterProps): JSX.Element {
  const { room, state } = props;
  const { trans } = room;
  const [isOpen, setOpen] = useState(false);
  const [shown, setShown] = useState(DEVICES_AT_ONCE);
  const [seen, setSeen] = useState<{ cluster: ClusterView; at: number } | null>(null);
  useEffect(() => {
    if (!isOpen) {
      return;
    }
    let isOver = false;
    async function look(): Promise<void> {
      if (document.visibilityState !== 'visible' || room.model.state.trouble !== null) {
        return;
      }
      const answer = await room.api.view<ClusterView>('cluster');
      if (answer.kind === 'ok' && !isOver) {
        setSeen({ cluster: answer.value, at: Date.now() });
      }
    }
    void look();
    const timer = setInterval(() => void look(), LOOK_SECONDS * 1000);
    return () => {
      isOver = true;
      clearInterval(timer);
    };
  }, [isOpen, room]);
  const cluster = isOpen && seen !== null && seen.at > state.clusterAt ? seen.cluster : props.cluster;
  return (
    <details onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>{trans.__('Devices')}</summary>
      {isOpen && (
        <>
          <ul>
            {cluster.devices.slice(0, shown).map(device => (
              <li key={device.id}>
                <DeviceName device={device} {...props} />: {deviceStateWords(device, trans)}
                <Holder device={device} {...props} />
                <Load device={device} {...props} />
                <Remedy device={device} {...props} />
                <Processes device={device} {...props} />
              </li>
            ))}
          </ul>
          <More left={cluster.devices.length - shown} show={() => setShown(shown + DEVICES_AT_ONCE)} trans={trans} />
        </>
      )}
    </details>
  );
}

/** With the number that nvidia-smi counts by, and the identity that stays: point at it for the whole. */
function DeviceName({ device, room }: DeviceProps): JSX.Element {
  const short = shortId(device.id);
  return (
    <span title={device.id}>
      {deviceWords(device, room.trans)}
      {short !== '' && ` ${short}`}
    </span>
  );
}

function Holder({ device, room, state }: DeviceProps): JSX.Element | null {
  const job = jobOn(device, state.jobs);
  return job === null ? null : <>{room.trans.__(', job %1', nameWords(job.name))}</>;
}

function Load({ device, room }: DeviceProps): JSX.Element | null {
  const words = loadWords(device, room.units, room.trans);
  return words === '' ? null : <p>{words}</p>;
}

/** Who is on a device without a lease, and how much of its memory that takes. */
function Outside({ device, room }: DeviceProps): JSX.Element | null {
  const { trans, units } = room;
  const strangers = strangersOn(device).slice(0, MOST_PROCESSES);
  if (strangers.length === 0) {
    return null;
  }
  const memory = strangersMemoryWords(device, units, trans);
  const who = strangers.map(process => processWords(process, device, units, trans)).join('; ');
  return <p>{memory === '' ? who : `${memory}: ${who}`}</p>;
}

/** Why a device is out of use, and what frees it. */
function Remedy({ device, room }: DeviceProps): JSX.Element {
  const isToldByProcesses = device.strangers.length > 0;
  return (
    <>
      {device.detail !== '' && !isToldByProcesses && <p>{device.detail}</p>}
      {device.free_when !== '' && <p>{room.trans.__('Offered again when: %1', device.free_when)}</p>}
    </>
  );
}

function Processes({ device, room }: DeviceProps): JSX.Element | null {
  const { trans, units } = room;
  return device.processes.length === 0 ? null : (
    <ul>
      {device.processes.slice(0, MOST_PROCESSES).map(process => (
        <li key={process.pid}>{processWords(process, device, units, trans)}</li>
      ))}
      {device.processes.length > MOST_PROCESSES && <li>{trans.__('and %1 more', device.processes.length - MOST_PROCESSES)}</li>}
    </ul>
  );
}
