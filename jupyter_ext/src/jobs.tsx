/** My jobs: how far, with what, until when, why; and what can be ordered of them. */
import React, { useState } from 'react';
import { lastOfEachName } from './ended';
import * as orders from './orders';
import type { DeviceSpan, JobView } from './protocol';
import { reasonsWithTimes } from './reasons';
import { More, Section, type ViewProps } from './view';
import { clockWords, deviceRangeWords, deviceWords, durationWords, forecastWords, phaseWords } from './words';

const JOBS_AT_ONCE = 20;
const MOST_ENDED_SHOWN = 5;

export function JobsView(props: ViewProps): JSX.Element {
  const { room, state } = props;
  const { trans } = room;
  const mine = state.jobs.filter(job => job.account === room.model.account);
  const [shown, setShown] = useState(JOBS_AT_ONCE);
  return (
    <Section title={trans.__('My jobs')}>
      {state.isKnown && mine.length === 0 && <p>{trans.__('None runs or waits. selfsched.Trainer(...).fit(...) in a cell starts one.')}</p>}
      {!state.isKnown && state.trouble === null && <p role="status">{trans.__('Asking the broker...')}</p>}
      {mine.slice(0, shown).map(job => (
        <JobCard key={job.job} job={job} {...props} />
      ))}
      <More left={mine.length - shown} show={() => setShown(shown + JOBS_AT_ONCE)} trans={trans} />
      {lastOfEachName(state.ended, mine).filter(job => job.account === room.model.account).slice(0, MOST_ENDED_SHOWN).map(job => (
        <p key={job.job}>
          <bdi>{job.name}</bdi>: {phaseWords(job, state.jobsAt, props.now, trans)}
        </p>
      ))}
    </Section>
  );
}

function JobCard({ job, room, state, now }: ViewProps & { job: JobView }): JSX.Element {
  const { trans, units } = room;
  const [isOpen, setOpen] = useState(false);
  const percent = Math.round(100 * Math.min(1, Math.max(0, job.fraction_done)));
  const finish = job.forecast === null ? trans.__('not known yet') : forecastWords(job.forecast, state.jobsAt, now, units, trans);
  const finishNote = job.forecast?.assumption === 'look_ahead' ? trans.__('with the others, as the broker looks ahead') : trans.__('if its devices stay as they are');
  return (
    <article className="jp-selfsched-job" aria-label={trans.__('Job %1', job.name)}>
      <h3>
        <bdi>{job.name}</bdi>
      </h3>
      <progress className="jp-selfsched-bar" max={100} value={percent} aria-label={trans.__('Progress of %1', job.name)} />
      <p>
        {trans.__('%1% done, step %2', percent, job.step)}
        {job.planned_steps !== null && trans.__(' of %1', job.planned_steps)}
      </p>
      <p className="jp-selfsched-phase">{phaseWords(job, state.jobsAt, now, trans)}
        {job.state === 'waiting' && job.reasons.length > 0 && trans.__(', because: %1', job.reasons[job.reasons.length - 1])}
      </p>
      {job.state !== 'paused' && <p title={finishNote}>{trans.__('Done: %1', finish)}</p>}
      <details onToggle={event => setOpen(event.currentTarget.open)}>
        <summary>{trans.__('Why, where and since when')}</summary>
        {isOpen && <Details job={job} room={room} state={state} now={now} />}
      </details>
      <div className="jp-selfsched-buttons" role="group" aria-label={trans.__('Orders for %1', job.name)}>
        {job.state === 'paused' ? (
          <button onClick={() => void orders.resume(room, job)}>{trans.__('Resume')}</button>
        ) : (
          <button onClick={() => void orders.pause(room, job)}>{trans.__('Pause')}</button>
        )}
        <button onClick={() => void orders.stop(room, job)}>{trans.__('Stop')}</button>
        {job.devices.length > 1 && job.resume === 'elastic' && <button onClick={() => void orders.release(room, job)}>{trans.__('Release a device')}</button>}
        {job.devices.length > 0 && job.resume !== 'never' && <button onClick={() => void orders.giveBack(room, job)}>{trans.__('Give all back')}</button>}
        <button onClick={() => void orders.setDevices(room, job)}>{trans.__('Devices...')}</button>
        <button onClick={() => void orders.setPriority(room, job)}>{trans.__('Priority...')}</button>
      </div>
    </article>
  );
}

function Details({ job, room, state, now }: ViewProps & { job: JobView }): JSX.Element {
  const { trans, units } = room;
  return (
    <>
      <p>{trans.__('May have %1; priority %2.', deviceRangeWords(job.min_devices, job.max_devices, trans), job.priority)}</p>
      {job.devices.length > 0 && <p>{job.devices.map(device => deviceWords(device, trans)).join(', ')}</p>}
      {job.term_seconds !== null && <p>{trans.__('Its lease is renewed or ends in %1.', durationWords(job.term_seconds, trans))}</p>}
      {reasonsWithTimes(job, state.jobsAt).map(({ reason, at }, i) => (
        <p key={i}>{at === null ? reason : trans.__('%1: %2', clockWords(at, now, units), reason)}</p>
      ))}
      <Spans spans={job.history} age={job.age_seconds} label={trans.__('Devices of %1 over time', job.name)} />
    </>
  );
}

/** Devices over time, as steps. */
function Spans({ spans, age, label }: { spans: readonly DeviceSpan[]; age: number; label: string }): JSX.Element | null {
  const most = Math.max(0, ...spans.map(span => span.devices.length));
  if (most === 0 || age <= 0) {
    return null;
  }
  return (
    <svg className="jp-selfsched-spans" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label={label}>
      {spans.slice(-200).map((span, i) => {
        const from = (100 * span.from_seconds) / age;
        const to = (100 * Math.min(age, span.to_seconds ?? age)) / age;
        const height = (20 * span.devices.length) / most;
        return <rect key={i} x={from} y={20 - height} width={Math.max(0.3, to - from)} height={height} />;
      })}
    </svg>
  );
}
