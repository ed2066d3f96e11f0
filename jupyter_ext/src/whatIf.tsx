/** "If I started this with 1, 2, 4 devices": a question to the broker, and its answer. */
import React, { useState } from 'react';
import { MOST_DEVICES, parseCounts } from './counts';
import { faultAdvice, faultTitle } from './faults';
import type { JobView, WhatIfAnswer } from './protocol';
import { Section, type ViewProps } from './view';
import { deviceCountWords, forecastWords } from './words';

type Outcome = { readonly answer: WhatIfAnswer; readonly at: number } | { readonly words: string } | null;

/** Whether its whole run may be known: it has said what is left, or it has ended and had devices. */
function tellsOfItself(job: JobView): boolean {
  return job.state === 'ended' ? job.history.length > 0 : job.bid !== null;
}

export function WhatIfSection(props: ViewProps): JSX.Element | null {
  const { room, state } = props;
  const { trans } = room;
  const [like, setLike] = useState('');
  const [hours, setHours] = useState('1');
  const [on, setOn] = useState('1');
  const [counts, setCounts] = useState('1, 2, 4');
  const [outcome, setOutcome] = useState<Outcome>(null);
  const [isAsking, setIsAsking] = useState(false);
  const mine = [...state.jobs, ...state.ended].filter(job => job.account === room.model.account && tellsOfItself(job));
  const chosen = mine.some(job => job.job === like) ? like : '';

  async function ask(): Promise<void> {
    const wanted = parseCounts(counts);
    const [length, basis] = [Number(hours), Number(on)];
    if (wanted === null) {
      setOutcome({ words: trans.__('Device counts are up to 8 whole numbers, as 1, 2, 4.') });
      return;
    }
    if (chosen === '' && !(length > 0 && Number.isInteger(basis) && basis >= 1)) {
      setOutcome({ words: trans.__('Say how many hours it takes, more than 0, and on how many devices.') });
      return;
    }
    setIsAsking(true);
    const answer = await room.api.whatIf({ devices: wanted, ...(chosen === '' ? { hours: length, on: basis } : { like: chosen }) });
    setIsAsking(false);
    if (answer.kind === 'ok') {
      setOutcome({ answer: answer.value, at: Date.now() });
    } else if (answer.kind === 'fault') {
      setOutcome({ words: [faultTitle(answer.fault, trans), faultAdvice(answer.fault, trans)].filter(Boolean).join(': ') });
    }
  }

  if (state.cluster === null) {
    return null;
  }
  return (
    <Section title={trans.__('What if I started a run now?')}>
      <form
        onSubmit={event => {
          event.preventDefault();
          void ask();
        }}
      >
        {mine.length > 0 && (
          <p>
            <label>
              {trans.__('Like')}{' '}
              <select value={chosen} onChange={event => setLike(event.target.value)}>
                <option value="">{trans.__('hours that I say')}</option>
                {mine.map(job => (
                  <option key={job.job} value={job.job}>
                    {job.state === 'ended' ? trans.__('%1 (ended)', job.name) : job.name}
                  </option>
                ))}
              </select>
            </label>
          </p>
        )}
        {chosen === '' && (
          <p>
            <label className="jp-selfsched-field">
              {trans.__('Hours')} <input type="number" min="0.01" step="any" value={hours} onChange={event => setHours(event.target.value)} />
            </label>{' '}
            <label className="jp-selfsched-field">
              {trans.__('on devices')} <input type="number" min="1" max={MOST_DEVICES} value={on} onChange={event => setOn(event.target.value)} />
            </label>
          </p>
        )}
        <p>
          <label className="jp-selfsched-field">
            {trans.__('With devices')} <input value={counts} onChange={event => setCounts(event.target.value)} />
          </label>{' '}
          <button type="submit" disabled={isAsking}>
            {trans.__('Ask')}
          </button>
        </p>
      </form>
      <div role="status">{outcome !== null && <OutcomeView outcome={outcome} {...props} />}</div>
    </Section>
  );
}

function OutcomeView({ outcome, room, now }: ViewProps & { outcome: NonNullable<Outcome> }): JSX.Element {
  const { trans, units } = room;
  if ('words' in outcome) {
    return <p>{outcome.words}</p>;
  }
  const never = trans.__('not within what can be foreseen');
  return (
    <>
      <table>
        <thead>
          <tr>
            <th scope="col">{trans.__('With')}</th>
            <th scope="col">{trans.__('Starts')}</th>
            <th scope="col">{trans.__('Done')}</th>
          </tr>
        </thead>
        <tbody>
          {outcome.answer.ahead.map((line, i) => (
            <tr key={i}>
              <td>{line.devices === null ? trans.__('as now') : deviceCountWords(line.devices, trans)}</td>
              <td>{line.starts === null ? never : forecastWords(line.starts, outcome.at, now, units, trans)}</td>
              <td>{line.ends === null ? never : forecastWords(line.ends, outcome.at, now, units, trans)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p>{outcome.answer.reason}</p>
    </>
  );
}
