/** History: what I used, how past forecasts came out, what auctions decided, and what runs on this machine printed. */
import React, { useState } from 'react';
import type { Answer } from './api';
import { AuctionsView } from './auctions';
import { faultTitle } from './faults';
import type { AccountView, ForecastScore, JobView, RunView } from './protocol';
import { Section, type ViewProps } from './view';
import { durationWords, runStateWords } from './words';

const MOST_ROWS = 20;
const MOST_OUTPUT = 200_000;

interface Known {
  readonly account: Answer<AccountView>;
  readonly scores: Answer<readonly ForecastScore[]>;
  readonly runs: Answer<readonly RunView[]>;
  readonly jobs: Answer<readonly JobView[]>;
}

export function HistorySection(props: ViewProps): JSX.Element {
  const { trans, api } = props.room;
  const [known, setKnown] = useState<Known | null>(null);

  async function look(): Promise<void> {
    const [account, scores, runs, jobs] = await Promise.all([api.account(), api.forecasts(), api.runs(), api.jobs(true)]);
    setKnown({ account, scores, runs, jobs });
  }

  return (
    <Section title={trans.__('History')}>
      <button onClick={() => void look()}>{known === null ? trans.__('Show my history') : trans.__('Refresh')}</button>
      {known !== null && (
        <>
          <Usage answer={known.account} {...props} />
          <Scores answer={known.scores} {...props} />
          <AuctionsView names={namesOf(known, props)} {...props} />
          <Runs answer={known.runs} {...props} />
        </>
      )}
    </Section>
  );
}

/** Names of jobs by their ids, of those that the broker still knows. */
function namesOf(known: Known, { state }: ViewProps): ReadonlyMap<string, string> {
  const listed = known.jobs.kind === 'ok' ? known.jobs.value : [];
  return new Map([...listed, ...state.ended, ...state.jobs].map(job => [job.job, job.name]));
}

function Usage({ answer, room }: ViewProps & { answer: Answer<AccountView> }): JSX.Element | null {
  const { trans } = room;
  if (answer.kind !== 'ok') {
    return answer.kind === 'fault' ? <p>{faultTitle(answer.fault, trans)}</p> : null;
  }
  const hours = (answer.value.used_device_seconds / 3600).toFixed(1);
  return <p>{trans.__('Used so far: %1 device hours; held now: %2.', hours, answer.value.held_devices)}</p>;
}

function Scores({ answer, room }: ViewProps & { answer: Answer<readonly ForecastScore[]> }): JSX.Element | null {
  const { trans } = room;
  if (answer.kind !== 'ok') {
    return answer.kind === 'fault' ? <p>{faultTitle(answer.fault, trans)}</p> : null;
  }
  const ended = answer.value.filter(score => score.actual_seconds !== null);
  const judged = ended.filter(score => score.held !== false && score.covered !== null);
  if (ended.length === 0) {
    return <p>{trans.__('No forecast has been held against an end yet.')}</p>;
  }
  const held = judged.filter(score => score.covered).length;
  return (
    <>
      <p>{trans._n('Of the last %1 forecast %2 held (80% are meant to).', 'Of the last %1 forecasts %2 held (80% are meant to).', judged.length, held)}</p>
      <table>
        <thead>
          <tr>
            <th scope="col">{trans.__('Job')}</th>
            <th scope="col">{trans.__('Said')}</th>
            <th scope="col">{trans.__('Came')}</th>
            <th scope="col">{trans.__('Held')}</th>
          </tr>
        </thead>
        <tbody>
          {ended.slice(0, MOST_ROWS).map((score, i) => (
            <tr key={i}>
              <td>
                <bdi>{score.name ?? score.job}</bdi>
              </td>
              <td>{durationWords(score.forecast.p50_seconds, trans)}</td>
              <td>{durationWords(score.actual_seconds ?? 0, trans)}</td>
              <td>{score.held === false ? trans.__('devices changed') : score.covered ? trans.__('yes') : trans.__('no')}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function Runs({ answer, room }: ViewProps & { answer: Answer<readonly RunView[]> }): JSX.Element | null {
  const { trans, api } = room;
  const [output, setOutput] = useState<{ name: string; text: string } | null>(null);

  async function show(name: string): Promise<void> {
    let text = '';
    let from = 0;
    for (;;) {
      const page = await api.output(name, from);
      if (page.kind !== 'ok') {
        text += page.kind === 'fault' ? faultTitle(page.fault, trans) : '';
        break;
      }
      text = (text + page.value.text).slice(-MOST_OUTPUT);
      if (page.value.text === '' || page.value.next === from) {
        break;
      }
      from = page.value.next;
    }
    setOutput({ name, text: text || trans.__('It has printed nothing.') });
  }

  if (answer.kind !== 'ok') {
    return answer.kind === 'fault' ? <p>{faultTitle(answer.fault, trans)}</p> : null;
  }
  return (
    <>
      <h3>{trans.__('Runs on this machine')}</h3>
      {answer.value.length === 0 && <p>{trans.__('None yet.')}</p>}
      <ul>
        {answer.value.slice(0, MOST_ROWS).map(run => (
          <li key={run.name}>
            <bdi>{run.job_name || run.name}</bdi> ({runStateWords(run.state, trans)}){' '}
            <button onClick={() => void show(run.name)} aria-label={trans.__('Output of %1', run.name)}>
              {trans.__('Output')}
            </button>
          </li>
        ))}
      </ul>
      {output !== null && (
        <>
          <h3>{trans.__('Output of %1', output.name)}</h3>
          <div className="jp-selfsched-output" tabIndex={0} role="log" aria-label={trans.__('Output of %1', output.name)}>
            {output.text}
          </div>
        </>
      )}
    </>
  );
}
