/** What is on devices, whose it is, and which devices are not as they should be. Pure. */
import type { ClusterView, DeviceProcess, DeviceView, JobView } from './protocol';
import { memoryWords, type Trans, type Units } from './words';

/** The job that holds a device, of those that the user may see; null: nobody's, or one that is not theirs to see. */
export function jobOn(device: DeviceView, jobs: readonly JobView[]): JobView | null {
  return jobs.find(job => job.devices.some(held => held.id === device.id)) ?? null;
}

/** Processes on a device that belong to no lease. */
export function strangersOn(device: DeviceView): readonly DeviceProcess[] {
  return device.processes.filter(process => device.strangers.includes(process.pid));
}

/** Whether the device is out of use, or somebody is on it who has no lease of it. */
export function isTroubled(device: DeviceView): boolean {
  const isInUse = device.state === 'free' || device.state === 'held' || device.state === 'yielding';
  return !isInUse || device.strangers.length > 0 || (device.state === 'free' && device.free_when !== '');
}

/** Devices that a user is told of without asking: their own with strangers on them, for an administrator all. */
export function toldOpenly(cluster: ClusterView, account: string | null, isAdmin: boolean): readonly DeviceView[] {
  return cluster.devices.filter(device => isTroubled(device) && (isAdmin || device.account === account));
}

/** `40.0 of 80.0 GiB of memory in use, 45% busy`; nothing is said of what its node does not tell. */
export function loadWords(device: DeviceView, units: Units, trans: Trans): string {
  const parts: string[] = [];
  if (device.memory_used_bytes !== null) {
    const used = memoryWords(device.memory_used_bytes, units);
    parts.push(
      device.memory_bytes === null
        ? trans.__('%1 of memory in use', used)
        : trans.__('%1 of %2 of memory in use', used, memoryWords(device.memory_bytes, units))
    );
  }
  if (device.utilisation !== null) {
    parts.push(trans.__('%1% busy', Math.round(100 * device.utilisation)));
  }
  return parts.join(', ');
}

/** `process 7 (python) of eve: 40.0 GiB, without a lease`. */
export function processWords(process: DeviceProcess, device: DeviceView, units: Units, trans: Trans): string {
  const owner = process.account ?? trans.__('somebody unknown');
  const who =
    process.command === ''
      ? trans.__('process %1 of %2', process.pid, owner)
      : trans.__('process %1 (%2) of %3', process.pid, process.command, owner);
  const memory = process.used_bytes === null ? '' : `: ${memoryWords(process.used_bytes, units)}`;
  return who + memory + (device.strangers.includes(process.pid) ? trans.__(', without a lease') : '');
}

/** How much of a device's memory strangers have; empty: there are none, or their memory is not known. */
export function strangersMemoryWords(device: DeviceView, units: Units, trans: Trans): string {
  const taken = strangersOn(device).reduce((sum, process) => sum + (process.used_bytes ?? 0), 0);
  if (taken === 0) {
    return '';
  }
  const words = memoryWords(taken, units);
  return device.memory_bytes === null
    ? trans.__('%1 of its memory is taken by who has no lease of it', words)
    : trans.__('%1 of its %2 of memory is taken by who has no lease of it', words, memoryWords(device.memory_bytes, units));
}
