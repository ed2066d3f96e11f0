/** Times, amounts and states as people say them. Pure: the language and the clock are arguments. */
import type { TranslationBundle } from '@jupyterlab/translation';
import type { DeviceView, Forecast, JobView, ShownBroker } from './protocol';

export type Trans = Pick<TranslationBundle, '__' | '_n'>;

/** How the user wants numbers written. */
export interface Units {
  /** Finish times by the clock, as what is left, or both. */
  readonly finish: 'clock' | 'left' | 'both';
  readonly clock: 'auto' | '24h' | '12h';
  readonly memory: 'GiB' | 'GB';
}

export const USUAL_UNITS: Units = { finish: 'both', clock: 'auto', memory: 'GiB' };

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;
const WEEKDAY_DAYS = 6;
/** Its node numbers the instances of GPU n from 100 n on. */
const MIG_NUMBERS = 100;

/** A duration: `42 s`, `6 min`, `2 h 05 min`, `3 d 4 h`. */
export function durationWords(seconds: number, trans: Trans): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 2 * MINUTE) {
    return trans.__('%1 s', whole);
  }
  const minutes = Math.round(whole / MINUTE);
  if (minutes < 60) {
    return trans.__('%1 min', minutes);
  }
  if (minutes < 48 * 60) {
    return trans.__('%1 h %2 min', Math.floor(minutes / 60), String(minutes % 60).padStart(2, '0'));
  }
  const hours = Math.round(whole / HOUR);
  return trans.__('%1 d %2 h', Math.floor(hours / 24), hours % 24);
}

/** An instant in the browser's time zone: `14:05`, `Thu 14:05` within six days, else with its date. */
export function clockWords(at: number, now: number, units: Units, locale?: string): string {
  const time: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit' };
  if (units.clock !== 'auto') {
    time.hourCycle = units.clock === '24h' ? 'h23' : 'h12';
  }
  const moment = new Date(at);
  if (moment.toDateString() === new Date(now).toDateString()) {
    return moment.toLocaleTimeString(locale, time);
  }
  const isNear = Math.abs(at - now) < WEEKDAY_DAYS * DAY * 1000;
  const day: Intl.DateTimeFormatOptions = isNear
    ? { weekday: 'short' }
    : { year: 'numeric', month: 'short', day: 'numeric' };
  return moment.toLocaleString(locale, { ...day, ...time });
}

/** When, as a range: `in 6 min (4 min to 9 min)`, `14:05 (14:02 to 14:11)`, or both. */
export function forecastWords(forecast: Forecast, madeAt: number, now: number, units: Units, trans: Trans): string {
  const late = (now - madeAt) / 1000;
  const left = [forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds].map(s => Math.max(0, s - late));
  const clock = left.map(s => clockWords(now + s * 1000, now, units));
  const words = left.map(s => durationWords(s, trans));
  const byClock = rangeWords(clock, trans);
  const byLeft = trans.__('in %1', rangeWords(words, trans));
  if (units.finish !== 'left' && clock[0] === clock[2] && words[0] !== words[2]) {
    // Within one minute the clock alone would say that nothing is uncertain.
    return trans.__('%1, %2', clock[1], byLeft);
  }
  if (units.finish === 'both') {
    return trans.__('%1, in %2', byClock, words[1]);
  }
  return units.finish === 'clock' ? byClock : byLeft;
}

function rangeWords([low, middle, high]: string[], trans: Trans): string {
  return low === middle && middle === high ? middle : trans.__('%1 (%2 to %3)', middle, low, high);
}

/** `3.5 GiB`. */
export function memoryWords(bytes: number, units: Units): string {
  const [unit, mega] = units.memory === 'GiB' ? [2 ** 30, 'MiB'] : [1e9, 'MB'];
  const small = units.memory === 'GiB' ? 2 ** 20 : 1e6;
  return bytes < unit ? `${Math.round(bytes / small)} ${mega}` : `${(bytes / unit).toFixed(1)} ${units.memory}`;
}

/** `2 devices`, `no devices`. */
export function deviceCountWords(count: number, trans: Trans): string {
  return count === 0 ? trans.__('no devices') : trans._n('%1 device', '%1 devices', count);
}

/** How many devices a job may have: `1 device`, `1 to 4 devices`. */
export function deviceRangeWords(least: number, most: number, trans: Trans): string {
  return least === most ? deviceCountWords(most, trans) : trans.__('%1 to %2 devices', least, most);
}

/** What a job has or does, where there is room for a word or two: `2 devices`, `paused`, `waits`. */
export function briefWords(job: Pick<JobView, 'state' | 'devices'>, trans: Trans): string {
  if (job.devices.length > 0) {
    return deviceCountWords(job.devices.length, trans);
  }
  return job.state === 'paused' ? trans.__('paused') : trans.__('waits');
}

/** A device as nvidia-smi or the machine calls it: `GPU 0 on node-a (A100)`. */
export function deviceWords(device: Pick<DeviceView, 'id' | 'kind' | 'index' | 'node' | 'model'>, trans: Trans): string {
  if (device.kind === 'cpu') {
    return trans.__('CPU slot %1 on %2', device.index, device.node);
  }
  if (device.id.startsWith('MIG-')) {
    const [gpu, part] = [Math.floor(device.index / MIG_NUMBERS), device.index % MIG_NUMBERS];
    return trans.__('GPU %1, part %2 (MIG) on %3 (%4)', gpu, part, device.node, device.model);
  }
  return trans.__('GPU %1 on %2 (%3)', device.index, device.node, device.model);
}

/** The beginning of a GPU's UUID, as people tell GPUs apart: `GPU-8f6c2f6e`; empty where the name says it all. */
export function shortId(id: string): string {
  const found = /^(?:GPU|MIG)-[^-]{1,12}/.exec(id);
  return found === null ? '' : found[0];
}

/** Where the broker's address comes from. */
export function brokerWords(kind: ShownBroker['kind'], trans: Trans): string {
  switch (kind) {
    case 'set':
      return trans.__('the one that is set');
    case 'lab':
      return trans.__('the one of your lab on this machine');
    case 'private':
      return trans.__('your own on this machine');
    case 'none':
      return trans.__('none');
  }
}

/** What a job is doing, in words that need no glossary. */
export function phaseWords(job: JobView, madeAt: number, now: number, trans: Trans): string {
  const devices = deviceCountWords(job.devices.length, trans);
  switch (job.state) {
    case 'waiting':
      return waitingWords(job, madeAt, now, trans);
    case 'starting':
      return trans.__('starts on %1', devices);
    case 'running':
      return job.idle_seconds > 10 * MINUTE
        ? trans.__('runs on %1, but has made no step for %2', devices, durationWords(job.idle_seconds, trans))
        : trans.__('runs on %1', devices);
    case 'yielding':
      return trans.__('saves a checkpoint and leaves devices');
    case 'paused':
      return trans.__('paused; it holds nothing and keeps its place');
    case 'ended':
      return endWords(job, trans);
  }
}

function waitingWords(job: JobView, madeAt: number, now: number, trans: Trans): string {
  if (job.starts === null) {
    return trans.__('waits for a device; when it gets one is not known yet');
  }
  const late = (now - madeAt) / 1000;
  const [low, middle, high] = [job.starts.p10_seconds, job.starts.p50_seconds, job.starts.p90_seconds].map(s =>
    durationWords(Math.max(0, s - late), trans)
  );
  return trans.__('waits for a device, expected in %1', rangeWords([low, middle, high], trans));
}

/** How a job ended. */
export function endWords(job: JobView, trans: Trans): string {
  switch (job.outcome) {
    case 'finished':
      return trans.__('finished');
    case 'failed':
      return trans.__('failed');
    case 'cancelled':
      return trans.__('stopped');
    case 'lost':
      return trans.__('lost: nothing was heard of it any more');
    default:
      return trans.__('ended');
  }
}

/** What became of a run on this machine. */
export function runStateWords(state: string, trans: Trans): string {
  switch (state) {
    case 'running':
      return trans.__('running');
    case 'finished':
      return trans.__('finished');
    case 'failed':
      return trans.__('failed');
    case 'refused':
      return trans.__('refused');
    case 'yielded':
      return trans.__('gave its devices up, goes on later');
    case 'stopped':
      return trans.__('stopped');
    case 'lost':
      return trans.__('killed');
    default:
      return state;
  }
}

/** The state of a device, with since when where it matters. */
export function deviceStateWords(device: DeviceView, trans: Trans): string {
  const since = durationWords(device.since_seconds, trans);
  switch (device.state) {
    case 'free':
      return trans.__('free');
    case 'held':
      return trans.__('held by %1', device.account ?? '?');
    case 'yielding':
      return trans.__('is being left by %1', device.account ?? '?');
    case 'quarantined':
      return trans.__('left out of offers for %1, until it is proven empty', since);
    case 'unknown':
      return trans.__('left out of offers: unknown for %1', since);
    case 'drained':
      return trans.__('taken out by an administrator');
  }
}
