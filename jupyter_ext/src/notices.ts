/** JupyterLab's own notifications of what happened to the user's jobs. */
import { Notification } from '@jupyterlab/apputils';
import type { Change, ChangeKind } from './changes';
import { nameWords } from './orders';
import type { Room } from './view';
import { deviceCountWords } from './words';

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
      return trans.__('%1 left its devices and waits', name);
    case 'ended':
      return change.job.outcome === 'finished' ? trans.__('%1 is done', name) : trans.__('%1 ended: %2', name, change.job.outcome ?? '?');
  }
}

export function tell(changes: readonly Change[], wanted: Wanted, room: Room): void {
  for (const change of changes.filter(one => wanted[one.kind])) {
    const type = change.kind === 'ended' && change.job.outcome !== 'finished' ? 'warning' : 'info';
    Notification.emit(changeWords(change, room), type, { autoClose: change.kind === 'ended' ? false : 8000 });
  }
}
