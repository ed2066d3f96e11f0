/** What can go wrong between the panel and the broker, and how each is said. Pure. */
import type { Trans } from './words';

/** One failure, as a program sees it. */
export interface Fault {
  /** Of a problem document, or one of `OWN`. */
  readonly code: string;
  /** Of HTTP; 0: there was no answer. */
  readonly status: number;
  readonly detail: string;
  readonly retryAfterSeconds: number | null;
}

/** Codes of the front end itself: Jupyter's own server does not answer, or not with our JSON. */
export const OWN = { noServer: 'no_server', notJson: 'not_json', noExtension: 'no_extension' } as const;

/** What waiting does not mend: it is asked again when the user says so or comes back to the page. */
const FINAL = new Set(['not_authenticated', 'forbidden', 'jupyter_refused', 'no_right', 'other_version', 'settings_invalid']);

/** Whether asking again by itself makes no sense. */
export function isFinal(fault: Fault): boolean {
  return FINAL.has(fault.code) || fault.status === 401 || fault.status === 403 || fault.code === OWN.noExtension;
}

/** Whether there just is nothing to show yet: no trouble, a state of its own. */
export function isNoBroker(fault: Fault): boolean {
  return fault.code === 'no_broker';
}

/** One line that says what is wrong. */
export function faultTitle(fault: Fault, trans: Trans): string {
  switch (fault.code) {
    case 'no_broker':
      return trans.__('No broker is running');
    case 'broker_unreachable':
    case 'unavailable':
      return trans.__('The broker does not answer');
    case 'not_a_broker':
      return trans.__('What answers at the address of the broker is none');
    case 'other_version':
      return trans.__('The broker speaks another version');
    case 'settings_invalid':
      return trans.__('A setting of selfsched is wrong');
    case 'not_authenticated':
      return trans.__('The broker does not accept your token');
    case 'forbidden':
      return trans.__('You may not see this');
    case 'jupyter_refused':
      return trans.__('The Jupyter server refuses: log in again');
    case 'no_right':
      return trans.__('You may not do this on this Jupyter server');
    case 'overloaded':
      return trans.__('The broker has too much to do');
    case 'conflict':
    case 'job_ended':
    case 'lease_lost':
      return trans.__('It is no longer as the panel showed');
    case 'impossible_request':
    case 'invalid_message':
      return trans.__('The broker says no');
    case 'not_foreseeable':
      return trans.__('This cannot be foreseen');
    case 'not_found':
      return trans.__('It is not there any more');
    case OWN.noServer:
      return trans.__('The Jupyter server does not answer');
    case OWN.noExtension:
      return trans.__('The server extension of selfsched is not switched on');
    default:
      return byStatus(fault, trans);
  }
}

function byStatus(fault: Fault, trans: Trans): string {
  if (fault.status === 401 || fault.status === 403) {
    return trans.__('The Jupyter server refuses: log in again');
  }
  if (fault.status === 429) {
    return trans.__('The broker has too much to do');
  }
  return fault.status >= 500 ? trans.__('The broker has a trouble of its own') : trans.__('This cannot be shown');
}

/** What to do, or the broker's own words. */
export function faultAdvice(fault: Fault, trans: Trans): string {
  switch (fault.code) {
    case 'not_authenticated':
      return fault.detail || trans.__('It has expired or was revoked: renew it, then try again.');
    case 'other_version':
      return fault.detail || trans.__('Install the same version of selfsched on both sides, then reload the page.');
    case OWN.noServer:
      return trans.__('It may be starting again, or the connection is cut. Training goes on meanwhile.');
    case OWN.noExtension:
      return trans.__('Run "jupyter server extension enable selfsched_jupyter", then restart JupyterLab.');
    case OWN.notJson:
      return trans.__('A proxy in between sent a page of its own (status %1).', fault.status);
    default:
      return fault.detail;
  }
}
