/** What a user may order of a job: asked once more, sent once, and the result shown. */
import { Dialog, Notification } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';
import { showDialogOnce } from './dialogs';
import { faultAdvice, faultTitle } from './faults';
import type { ControlJob, JobView } from './protocol';
import type { Room } from './view';
import { deviceCountWords, deviceRangeWords } from './words';

/** As the broker takes them. */
const [LEAST_PRIORITY, MOST_PRIORITY] = [0.01, 100];

/** A name as it may be shown in a sentence: in its own direction, and not longer than one line. */
export function nameWords(name: string): string {
  const short = name.length > 60 ? `${name.slice(0, 57)}...` : name;
  return `\u2068${short}\u2069`;
}

/** Send an order and show what became of it. */
async function send(room: Room, job: JobView, order: ControlJob, done: string): Promise<void> {
  const answer = await room.api.control(job.job, order);
  if (answer.kind === 'fault') {
    const title = faultTitle(answer.fault, room.trans);
    Notification.error([title, faultAdvice(answer.fault, room.trans)].filter(Boolean).join(': '), { autoClose: false });
  } else {
    Notification.success(done, { autoClose: 5000 });
  }
  room.model.askNow();
}

async function confirmed(room: Room, title: string, body: string, action: string, warns: boolean): Promise<boolean> {
  const { trans } = room;
  const ok = warns ? Dialog.warnButton({ label: action }) : Dialog.okButton({ label: action });
  const result = await showDialogOnce({ title, body, buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), ok] });
  return result.button.accept;
}

export async function pause(room: Room, job: JobView): Promise<void> {
  const { trans } = room;
  const name = nameWords(job.name);
  const body = trans.__('It saves a checkpoint, gives all devices back and asks for none until you resume it here.');
  if (await confirmed(room, trans.__('Pause %1?', name), body, trans.__('Pause'), false)) {
    await send(room, job, { action: 'pause' }, trans.__('%1 pauses', name));
  }
}

export async function resume(room: Room, job: JobView): Promise<void> {
  const { trans } = room;
  const name = nameWords(job.name);
  const body = trans.__('It bids for devices again and goes on from its checkpoint.');
  if (await confirmed(room, trans.__('Resume %1?', name), body, trans.__('Resume'), false)) {
    await send(room, job, { action: 'resume' }, trans.__('%1 waits for devices', name));
  }
}

export async function stop(room: Room, job: JobView): Promise<void> {
  const { trans } = room;
  const name = nameWords(job.name);
  const body = [
    trans.__('It saves a checkpoint and ends.'),
    trans.__('To go on from there, call trainer.fit again in the notebook, without making a new Trainer: a new one starts again at step 0. A run of "selfsched run" goes on when it is started again under the same --name.')
  ].join(' ');
  if (await confirmed(room, trans.__('Stop %1?', name), body, trans.__('Stop'), true)) {
    await send(room, job, { action: 'stop' }, trans.__('%1 stops', name));
  }
}

export async function giveBack(room: Room, job: JobView): Promise<void> {
  const { trans } = room;
  const name = nameWords(job.name);
  const body = trans.__('It saves a checkpoint and gives all its devices back now. It asks for some again by itself, at the auction after the next; how many it may have stays as it is.');
  if (await confirmed(room, trans.__('Give back all devices of %1?', name), body, trans.__('Give all back'), true)) {
    await send(room, job, { action: 'give_back' }, trans.__('%1 gives all its devices back', name));
  }
}

/** One device fewer, and no more than that from now on. */
export async function release(room: Room, job: JobView): Promise<void> {
  const { trans } = room;
  const name = nameWords(job.name);
  const left = job.devices.length - 1;
  const body = trans.__('It goes on with %1, and asks for no more until you raise "Most devices" under "Devices...".', deviceCountWords(left, trans));
  if (await confirmed(room, trans.__('Release a device of %1?', name), body, trans.__('Release'), false)) {
    const order: ControlJob = { action: 'set_devices', min_devices: Math.min(job.min_devices, left), max_devices: left };
    await send(room, job, order, trans.__('%1 releases a device', name));
  }
}

class Numbers extends Widget implements Dialog.IBodyWidget<number[] | null> {
  constructor(fields: readonly { label: string; value: number; least: number; most: number }[], private readonly _areWhole = true) {
    super();
    this.addClass('jp-selfsched-dialog');
    for (const field of fields) {
      const label = document.createElement('label');
      const input = document.createElement('input');
      input.type = 'number';
      input.step = this._areWhole ? '1' : 'any';
      input.min = String(field.least);
      input.max = String(field.most);
      input.value = String(field.value);
      label.append(`${field.label} `, input);
      this.node.append(label);
      this._inputs.push(input);
    }
  }

  /** null: something is no number, or no whole one, within its bounds. */
  getValue(): number[] | null {
    const values = this._inputs.map(input => Number(input.value));
    const areGood = this._inputs.every((input, i) => input.value !== '' && input.checkValidity() && (!this._areWhole || Number.isInteger(values[i])));
    return areGood ? values : null;
  }

  private readonly _inputs: HTMLInputElement[] = [];
}

async function asked(room: Room, title: string, body: Numbers): Promise<number[] | null> {
  const { trans } = room;
  const buttons = [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('Set') })];
  const result = await showDialogOnce({ title, body, buttons, focusNodeSelector: 'input' });
  if (!result.button.accept) {
    return null;
  }
  if (!result.value) {
    Notification.error(trans.__('Nothing was changed: this is no number within its bounds.'), { autoClose: 8000 });
  }
  return result.value;
}

export async function setDevices(room: Room, job: JobView): Promise<void> {
  const { trans } = room;
  const name = nameWords(job.name);
  const body = new Numbers([
    { label: trans.__('Fewest devices'), value: job.min_devices, least: 1, most: 65536 },
    { label: trans.__('Most devices'), value: job.max_devices, least: 1, most: 65536 }
  ]);
  const values = await asked(room, trans.__('Devices of %1', name), body);
  if (values === null) {
    return;
  }
  const [least, most] = values;
  if (least > most) {
    Notification.error(trans.__('Nothing was changed: the fewest are more than the most.'), { autoClose: 8000 });
    return;
  }
  await send(room, job, { action: 'set_devices', min_devices: least, max_devices: most }, trans.__('%1 may have %2', name, deviceRangeWords(least, most, trans)));
}

export async function setPriority(room: Room, job: JobView): Promise<void> {
  const { trans } = room;
  const name = nameWords(job.name);
  const label = trans.__('Priority among your own jobs (twice as much is twice the share)');
  const body = new Numbers([{ label, value: job.priority, least: LEAST_PRIORITY, most: MOST_PRIORITY }], false);
  const values = await asked(room, trans.__('Priority of %1', name), body);
  if (values !== null) {
    await send(room, job, { action: 'set_priority', priority: values[0] }, trans.__('%1 has priority %2', name, values[0]));
  }
}
