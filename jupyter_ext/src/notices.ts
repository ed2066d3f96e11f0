/** JupyterLab's own notifications of what happened to the user's jobs. */
import { Notification } from '@jupyterlab/apputils';
import type { Change, ChangeKind } from './changes';
import { nameWords } from './orders';
import type { JobView } from './protocol';
import type { Room } from './view';
import { deviceCountWords, endWords } from './words';

/** Which kinds are told. */
export type Wanted = Readonly<Record<ChangeKind, boolean>>;

export const ALL: Wanted = { started: true, grew: true, shrank: true, lost_all: true, ended: true };

export function changeWords(change: Change, room: Room): string {
  const { trans } = room;
  const name = nameWords(change.job.name);
  const [before, after] = [deviceCountWords(change.before, trans), deviceCountWords(change.after, trans)];
  switch (change.kind) {
    case 'started':
      return trans.__('%1 has %2', name, after);
    case 'grew':
      return trans.__('%1 grew from %2 to %3', name, before, after);
    case 'shrank':
      return trans.__('%1 shrank from %2 to %3', name, before, after);
    case 'lost_all':
      return change.job.state === 'paused' ? trans.__('%1 is paused', name) : trans.__('%1 left its devices and waits', name);
    case 'ended':
      return change.job.outcome === 'finished' ? trans.__('%1 is done', name) : trans.__('%1 ended: %2', name, endWords(change.job, trans));
  }
}

/** One by one, or what is alike in one line where it is much: some hundred notices at once stop a page for seconds. */
export function tell(changes: readonly Change[], wanted: Wanted, room: Room): void {
  const told = changes.filter(one => wanted[one.kind]);
  const ended = told.filter(one => one.kind === 'ended').map(one => one.job);
  const moved = told.filter(one => one.kind !== 'ended');
  if (moved.length > MOST_TOLD_ONE_BY_ONE) {
    Notification.emit(movesWords(moved.length, room), 'info', { autoClose: 8000 });
  } else {
    tellEach(moved, room);
  }
  tellEnds(ended, wanted, room);
}

function tellEach(changes: readonly Change[], room: Room): void {
  for (const change of changes) {
    const type = change.kind === 'ended' && change.job.outcome !== 'finished' ? 'warning' : 'info';
    const words = changeWords(change, room);
    withdraw(words);
    Notification.emit(words, type, { autoClose: change.kind === 'ended' ? false : 8000 });
  }
}

/** Take back what says the same: the same once more tells nobody anything. */
function withdraw(words: string): void {
  for (const notice of Notification.manager.notifications.filter(one => one.message === words)) {
    Notification.dismiss(notice.id);
  }
}

/** With more at once, how many there were is told, not each. */
const MOST_TOLD_ONE_BY_ONE = 5;

/** Ends that the model did not tell of: one by one, or in one line where they are many. */
export function tellEnds(ended: readonly JobView[], wanted: Wanted, room: Room): void {
  if (!wanted.ended) {
    return;
  }
  if (ended.length <= MOST_TOLD_ONE_BY_ONE) {
    tellEach(ended.map(job => ({ kind: 'ended', job, before: 0, after: 0 })), room);
  } else {
    Notification.emit(endsWords(ended, room), ended.every(isDone) ? 'info' : 'warning', { autoClose: false });
  }
}

function isDone(job: JobView): boolean {
  return job.outcome === 'finished';
}

/** `12 more jobs ended, 9 of them done`. */
export function endsWords(ended: readonly JobView[], { trans }: Pick<Room, 'trans'>): string {
  return trans._n('%1 more job ended, %2 of them done', '%1 more jobs ended, %2 of them done', ended.length, ended.filter(isDone).length);
}

/** `12 of your jobs have other devices now`. */
export function movesWords(count: number, { trans }: Pick<Room, 'trans'>): string {
  return trans._n('%1 of your jobs has other devices now', '%1 of your jobs have other devices now', count);
}
