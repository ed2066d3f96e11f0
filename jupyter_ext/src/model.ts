/**
 * What the page knows of jobs and cluster, and the one timer that keeps it new.
 *
 * Two questions are asked over and over: the jobs, every few seconds, and the cluster, by long
 * polls that come back as soon as something changed; then the jobs are asked for at once. The jobs
 * are not held back too: a browser keeps six connections to a server for all its tabs, and an answer
 * that nothing is new would leave their ages and idle times as they were. What is
 * wrong is decided by the jobs alone: a long poll that a proxy cuts is no trouble, and after three
 * in a row the cluster is asked for without waiting. After a fault the pause doubles up to a
 * minute (five after an hour), with jitter; a fault that waiting does not mend ends the asking
 * until the user asks again or comes back to the page. A hidden page asks rarely, then not at all.
 */
import { Signal, type ISignal } from '@lumino/signaling';
import type { Answer, Asking } from './api';
import { changesBetween, type Change } from './changes';
import { isFinal, isNoBroker, type Fault } from './faults';
import type { ClusterView, Hello, JobView } from './protocol';

export const LONG_POLL_SECONDS = 20;
export const HIDDEN_REFRESH_SECONDS = 30;
export const HIDDEN_STANDBY_SECONDS = 600;
export const FIRST_PAUSE_SECONDS = 2;
export const LONGEST_PAUSE_SECONDS = 60;
export const LONGEST_PAUSE_AFTER_AN_HOUR_SECONDS = 300;
const HOUR_SECONDS = 3600;
const NO_BROKER_REFRESH_SECONDS = 10;
const CUTS_UNTIL_PLAIN_POLLS = 3;
const LEAST_GAP_SECONDS = 0.25;
const MOST_ENDED = 20;
const MOST_ASKED_AFTER = 5;

/** What the model asks; `Api` is one. */
export interface Source {
  hello(): Promise<Answer<Hello>>;
  jobs(ended: boolean): Promise<Answer<readonly JobView[]>>;
  job(id: string): Promise<Answer<JobView>>;
  view<T>(path: string, asking: Asking): Promise<Answer<T>>;
}

/** Clock, timer and chance, which tests replace. */
export interface Surroundings {
  /** Milliseconds since 1970. */
  now(): number;
  random(): number;
  after(milliseconds: number, call: () => void): () => void;
}

export const REAL: Surroundings = {
  now: () => Date.now(),
  random: () => Math.random(),
  after: (milliseconds, call) => {
    const timer = setTimeout(call, milliseconds);
    return () => clearTimeout(timer);
  }
};

/** A failure that lasts. Instants are in milliseconds since 1970. */
export interface Trouble {
  readonly fault: Fault;
  readonly since: number;
  /** When it is asked again; null: not by itself. */
  readonly nextAt: number | null;
}

export interface State {
  readonly hello: Hello | null;
  /** Live jobs, as the broker lists them. */
  readonly jobs: readonly JobView[];
  /** That ended while this page looked on, newest first. */
  readonly ended: readonly JobView[];
  readonly cluster: ClusterView | null;
  readonly jobsAt: number;
  readonly clusterAt: number;
  readonly trouble: Trouble | null;
  /** Whether the jobs were ever told. */
  readonly isKnown: boolean;
  /** Whether asking rests because nobody looks. */
  readonly isAsleep: boolean;
}

const NOTHING: State = {
  hello: null, jobs: [], ended: [], cluster: null, jobsAt: 0, clusterAt: 0, trouble: null, isKnown: false, isAsleep: false
};

/** Where an answer is not made as this page knows it, that is a fault too, and not the end of all asking. */
async function understood(ask: () => Promise<Fault | null>): Promise<Fault | null> {
  try {
    return await ask();
  } catch {
    return { code: 'other_version', status: 0, detail: '', retryAfterSeconds: null };
  }
}

export class Model {
  constructor(private readonly _source: Source, private readonly _around: Surroundings = REAL) {}

  get state(): State {
    return this._state;
  }

  /** The account whose jobs are "mine"; null until it is known. */
  get account(): string | null {
    return this._state.hello?.account?.account ?? null;
  }

  /** Whatever is shown may be another. */
  get changed(): ISignal<this, State> {
    return this._changed;
  }

  /** Something happened to the user's jobs. */
  get happened(): ISignal<this, readonly Change[]> {
    return this._happened;
  }

  /** Between two questions for the jobs. */
  set refreshSeconds(seconds: number) {
    this._refreshSeconds = Math.min(60, Math.max(1, seconds));
  }

  start(): void {
    this._isRunning = true;
    this.askNow();
  }

  dispose(): void {
    this._isRunning = false;
    this._stopTimer();
    Signal.clearData(this);
  }

  /** Ask everything now, also after a fault that ended the asking. */
  askNow(): void {
    this._jobsDue = this._clusterDue = this._around.now();
    this._rests = false;
    this._plan();
  }

  /** Whether anybody can see the page. */
  setVisible(isVisible: boolean): void {
    if (isVisible === this._isVisible) {
      return;
    }
    this._isVisible = isVisible;
    this._hiddenAt = this._around.now();
    if (isVisible) {
      this._put({ isAsleep: false });
      this.askNow();
    }
  }

  // --- the one timer

  private _plan(): void {
    this._stopTimer();
    if (!this._isRunning || this._rests) {
      return;
    }
    const dues = [this._asksJobs ? Infinity : this._jobsDue, this._asksCluster ? Infinity : this._clusterDue];
    const due = Math.min(...dues);
    if (Number.isFinite(due)) {
      this._stop = this._around.after(Math.max(0, due - this._around.now()), () => this._wake());
    }
  }

  private _wake(): void {
    this._stop = null;
    const now = this._around.now();
    if (!this._isVisible && now - this._hiddenAt > HIDDEN_STANDBY_SECONDS * 1000) {
      this._rests = true;
      this._put({ isAsleep: true });
      return;
    }
    if (!this._asksJobs && this._jobsDue <= now) {
      void this._askJobs();
    }
    if (!this._asksCluster && this._clusterDue <= now) {
      void this._askCluster();
    }
    this._plan();
  }

  private _stopTimer(): void {
    this._stop?.();
    this._stop = null;
  }

  private _in(seconds: number): number {
    return this._around.now() + Math.max(LEAST_GAP_SECONDS, seconds) * 1000;
  }

  private get _pace(): number {
    return this._isVisible ? this._refreshSeconds : Math.max(HIDDEN_REFRESH_SECONDS, this._refreshSeconds);
  }

  // --- the jobs

  private async _askJobs(): Promise<void> {
    this._asksJobs = true;
    this._isStale = false;
    const fault = await understood(async () => (await this._greet()) ?? (await this._lookAtJobs()));
    this._asksJobs = false;
    if (fault !== null) {
      this._fail(fault);
    } else {
      this._failures = 0;
      // News of the cluster that came while the jobs were asked for may be newer than their answer.
      this._jobsDue = this._isStale ? this._in(0) : this._in(this._pace);
      this._put({ trouble: null });
    }
    this._plan();
  }

  /** Who we are and which broker it is; asked again after every fault. */
  private async _greet(): Promise<Fault | null> {
    if (this._state.hello !== null && this._state.trouble === null && this._state.hello.account !== null) {
      return null;
    }
    const answer = await this._source.hello();
    if (answer.kind === 'fault') {
      return answer.fault;
    }
    if (answer.kind === 'ok') {
      this._put({ hello: answer.value });
      const problem = answer.value.problem;
      return problem === null ? null : { ...problem, status: 0, retryAfterSeconds: null };
    }
    return null;
  }

  private async _lookAtJobs(): Promise<Fault | null> {
    const answer = await this._source.jobs(false);
    if (answer.kind !== 'ok') {
      return answer.kind === 'fault' ? answer.fault : null;
    }
    const live = answer.value.filter(job => job.state !== 'ended');
    const before = this._state.jobs;
    const ended = await this._endOf(before.filter(was => !live.some(is => is.job === was.job)));
    // Before they are taken: what is not made as a job is must not be compared with for ever.
    const changes = changesBetween(before, [...live, ...ended], this.account ?? '');
    const isFirst = !this._state.isKnown;
    this._put({
      jobs: live,
      jobsAt: this._around.now(),
      isKnown: true,
      ended: ended.length === 0 ? this._state.ended : [...ended, ...this._state.ended].slice(0, MOST_ENDED)
    });
    if (!isFirst && changes.length > 0) {
      this._happened.emit(changes);
    }
    return null;
  }

  /** Jobs that are no longer listed, as they ended. */
  private async _endOf(gone: readonly JobView[]): Promise<JobView[]> {
    const asked = gone.slice(0, MOST_ASKED_AFTER).map(job => this._source.job(job.job));
    const answers = await Promise.all(asked);
    return answers.flatMap(answer => (answer.kind === 'ok' && answer.value.state === 'ended' ? [answer.value] : []));
  }

  private _fail(fault: Fault): void {
    const now = this._around.now();
    const since = this._state.trouble?.since ?? now;
    const rests = isFinal(fault);
    const pause = isNoBroker(fault) ? NO_BROKER_REFRESH_SECONDS : this._backOff(now - since, fault);
    this._failures += 1;
    this._rests = rests;
    this._jobsDue = this._in(this._isVisible ? pause : Math.max(pause, HIDDEN_REFRESH_SECONDS));
    this._clusterDue = Math.max(this._clusterDue, this._jobsDue);
    this._put({ trouble: { fault, since, nextAt: rests ? null : this._jobsDue } });
  }

  private _backOff(lasted: number, fault: Fault): number {
    const most = lasted > HOUR_SECONDS * 1000 ? LONGEST_PAUSE_AFTER_AN_HOUR_SECONDS : LONGEST_PAUSE_SECONDS;
    const pause = Math.min(most, FIRST_PAUSE_SECONDS * 2 ** Math.min(this._failures, 10));
    return Math.max(pause * (0.5 + 0.5 * this._around.random()), Math.min(fault.retryAfterSeconds ?? 0, most));
  }

  // --- the cluster

  private async _askCluster(): Promise<void> {
    this._asksCluster = true;
    const began = this._around.now();
    const waitSeconds = this._isVisible && this._cuts < CUTS_UNTIL_PLAIN_POLLS && this._etag !== null ? LONG_POLL_SECONDS : 0;
    const answer = await this._source.view<ClusterView>('cluster', { etag: this._etag, waitSeconds });
    this._asksCluster = false;
    const took = (this._around.now() - began) / 1000;
    if (answer.kind === 'fault') {
      this._etag = null;
      this._cuts += 1;
      this._clusterDue = this._in(Math.min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** Math.min(this._cuts, 10)));
      // The jobs' answer says whether this is trouble.
      this._hurryJobs();
    } else {
      this._cuts = waitSeconds > 0 ? 0 : this._cuts;
      this._clusterDue = this._in(this._nextPoll(answer, waitSeconds, took));
      if (answer.kind === 'ok') {
        this._take(answer.value, answer.etag);
      }
    }
    this._plan();
  }

  private _nextPoll(answer: Answer<ClusterView>, waited: number, took: number): number {
    if (!this._isVisible || this._cuts >= CUTS_UNTIL_PLAIN_POLLS) {
      return this._pace;
    }
    // What came back at once without news did not wait: somebody in between does not know how.
    const didNotWait = answer.kind === 'same' && waited > 0 && took < 1;
    const hasNoTag = answer.kind === 'ok' && answer.etag === null;
    return didNotWait || hasNoTag ? this._pace : 0;
  }

  private _take(cluster: ClusterView, etag: string | null): void {
    const isFirst = this._state.cluster === null;
    this._etag = etag;
    this._put({ cluster, clusterAt: this._around.now() });
    if (!isFirst) {
      this._hurryJobs();
    }
  }

  private _hurryJobs(): void {
    this._isStale = true;
    if (this._state.trouble === null) {
      this._jobsDue = Math.min(this._jobsDue, this._around.now());
    }
  }

  private _put(part: Partial<State>): void {
    const isNews = (Object.keys(part) as (keyof State)[]).some(name => this._state[name] !== part[name]);
    this._state = { ...this._state, ...part };
    if (this._isRunning && isNews) {
      this._changed.emit(this._state);
    }
  }

  private _state: State = NOTHING;
  private readonly _changed = new Signal<this, State>(this);
  private readonly _happened = new Signal<this, readonly Change[]>(this);
  private _refreshSeconds = 5;
  private _isRunning = false;
  private _isVisible = true;
  private _hiddenAt = 0;
  private _rests = false;
  private _jobsDue = 0;
  private _clusterDue = 0;
  private _asksJobs = false;
  private _asksCluster = false;
  private _isStale = false;
  private _etag: string | null = null;
  private _failures = 0;
  private _cuts = 0;
  private _stop: (() => void) | null = null;
}
