/** In a notebook's toolbar: the job that this notebook runs. */
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import React from 'react';
import { jobOfNotebook } from './notebookJob';
import type { JobView, RunView } from './protocol';
import type { Room } from './view';
import { briefWords, phaseWords } from './words';

const LOOK_AGAIN_SECONDS = 10;

/** Runs of this machine, asked for at most every ten seconds however many notebooks are open. */
export class RunsOfNotebooks {
  constructor(private readonly _room: Room) {}

  /** The job that a notebook runs; null: none that is known. */
  jobOf(path: string, kernelId: string | null): JobView | null {
    this._look();
    return jobOfNotebook(this._runs, this._room.model.state.jobs, path, kernelId);
  }

  private _look(): void {
    const now = Date.now();
    if (now - this._askedAt < LOOK_AGAIN_SECONDS * 1000 || this._room.model.state.trouble !== null) {
      return;
    }
    this._askedAt = now;
    void this._room.api.runs().then(answer => {
      this._runs = answer.kind === 'ok' ? answer.value : this._runs;
    });
  }

  private _runs: readonly RunView[] = [];
  private _askedAt = 0;
}

export class NotebookItem extends ReactWidget {
  constructor(private readonly _room: Room, private readonly _runs: RunsOfNotebooks, private readonly _panel: NotebookPanel, private readonly _open: () => void) {
    super();
    this.addClass('jp-selfsched-toolbar');
  }

  protected render(): JSX.Element {
    const room = this._room;
    return (
      <UseSignal signal={room.model.changed}>
        {() => {
          const job = this._runs.jobOf(this._panel.context.path, this._panel.sessionContext.session?.kernel?.id ?? null);
          if (job === null) {
            return <></>;
          }
          const state = room.model.state;
          const phase = phaseWords(job, state.jobsAt, Date.now(), room.trans);
          return (
            <button onClick={this._open} title={`${job.name}: ${phase}`}>
              {`${briefWords(job, room.trans)}, ${Math.round(100 * job.fraction_done)}%`}
            </button>
          );
        }}
      </UseSignal>
    );
  }
}
