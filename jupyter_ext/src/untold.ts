/** Ends of jobs that the model did not ask after: it does so for a few at a time. Pure but for what it is given. */
import type { Api } from './api';
import type { Model } from './model';
import type { JobView } from './protocol';

/** Looks at the jobs whenever they may be others, and asks for all that are missing in one call. */
export class UntoldEnds {
  /**
   * @param _model - what is known of the jobs, and whose count.
   * @param _source - where those that have ended are asked for.
   * @param _tell - is called with ends that nobody has told of.
   */
  constructor(
    private readonly _model: Pick<Model, 'state' | 'account'>,
    private readonly _source: Pick<Api, 'jobs'>,
    private readonly _tell: (ended: readonly JobView[]) => void
  ) {}

  /** Look at the jobs as they are now. */
  look(): void {
    const { state, account } = this._model;
    if (!state.isKnown || account === null) {
      return;
    }
    const told = this._told();
    const live = new Set(state.jobs.filter(job => job.account === account).map(job => job.job));
    const gone = [...this._live].filter(id => !live.has(id) && !told.has(id));
    this._live = live;
    if (gone.length > 0) {
      void this._ask(new Set(gone));
    }
  }

  private async _ask(gone: ReadonlySet<string>): Promise<void> {
    const answer = await this._source.jobs(true);
    const told = this._told();
    const jobs = answer.kind === 'ok' ? answer.value : [];
    const ended = jobs.filter(job => gone.has(job.job) && !told.has(job.job) && job.state === 'ended');
    if (ended.length > 0) {
      this._tell(ended);
    }
  }

  private _told(): ReadonlySet<string> {
    return new Set(this._model.state.ended.map(job => job.job));
  }

  private _live: ReadonlySet<string> = new Set();
}
