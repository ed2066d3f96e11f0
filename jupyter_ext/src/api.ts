/** Calls of the server extension. Nothing here throws: every answer is a value. */
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import { OWN, type Fault } from './faults';
import type { Accepted, AccountView, ControlJob, ForecastScore, Hello, JobView, OutputPage, RunQuestion, RunView, WhatIfAnswer } from './protocol';

const ROOT = 'selfsched/api';
/** Longest wait for an answer that is not held back on purpose. */
const REPLY_SECONDS = 15;

export type Answer<T> =
  | { readonly kind: 'ok'; readonly value: T; readonly etag: string | null }
  | { readonly kind: 'same' }
  | { readonly kind: 'fault'; readonly fault: Fault };

/** How a view is asked for. */
export interface Asking {
  /** Of what is known: the answer waits for something new. */
  readonly etag?: string | null;
  readonly waitSeconds?: number;
}

/** The server extension, as one object that tests replace. */
export class Api {
  constructor(private readonly _settings: ServerConnection.ISettings = ServerConnection.makeSettings()) {}

  hello(): Promise<Answer<Hello>> {
    return this._call<Hello>('GET', 'hello');
  }

  view<T>(path: string, asking: Asking = {}): Promise<Answer<T>> {
    return this._call<T>('GET', `broker/${path}`, asking);
  }

  jobs(ended: boolean): Promise<Answer<readonly JobView[]>> {
    return this.view(`jobs?ended=${ended ? 1 : 0}`);
  }

  job(id: string): Promise<Answer<JobView>> {
    return this.view(`jobs/${encodeURIComponent(id)}`);
  }

  account(): Promise<Answer<AccountView>> {
    return this.view('accounts/me');
  }

  forecasts(): Promise<Answer<readonly ForecastScore[]>> {
    return this.view('accounts/me/forecasts');
  }

  whatIf(question: RunQuestion): Promise<Answer<WhatIfAnswer>> {
    return this._call('POST', 'what-if', { body: question });
  }

  /** Order something of a job. Sent once, under a key of its own. */
  control(job: string, order: ControlJob): Promise<Answer<Accepted>> {
    return this._call('POST', `broker/jobs/${encodeURIComponent(job)}/control`, { body: order, key: UUID.uuid4() });
  }

  runs(): Promise<Answer<readonly RunView[]>> {
    return this._call('GET', 'runs');
  }

  output(run: string, from: number): Promise<Answer<OutputPage>> {
    return this._call('GET', `runs/${encodeURIComponent(run)}/output?from=${from}`);
  }

  private async _call<T>(method: 'GET' | 'POST', path: string, how: Asking & { body?: object; key?: string } = {}): Promise<Answer<T>> {
    const wait = how.waitSeconds ?? 0;
    const url = URLExt.join(this._settings.baseUrl, ROOT, path) + (wait > 0 ? `?wait_seconds=${wait}` : '');
    const headers: Record<string, string> = {};
    if (how.etag) {
      headers['If-None-Match'] = how.etag;
    }
    if (how.key) {
      headers['Idempotency-Key'] = how.key;
    }
    const giveUp = new AbortController();
    const timer = setTimeout(() => giveUp.abort(), (wait + REPLY_SECONDS) * 1000);
    const body = how.body === undefined ? undefined : JSON.stringify(how.body);
    try {
      // With any other value JupyterLab adds a parameter of its own to the address.
      const init: RequestInit = { method, headers, body, signal: giveUp.signal, cache: 'default' };
      return await read<T>(await ServerConnection.makeRequest(url, init, this._settings));
    } catch (error) {
      // A cut connection, a server that is away, or a wait that was too long: no answer at all.
      return failed(OWN.noServer, 0, error instanceof Error ? error.message : String(error));
    } finally {
      clearTimeout(timer);
    }
  }
}

async function read<T>(response: Response): Promise<Answer<T>> {
  if (response.status === 304) {
    return { kind: 'same' };
  }
  const body: unknown = await response.json().catch(() => undefined);
  if (response.ok && body !== undefined) {
    return { kind: 'ok', value: body as T, etag: response.headers.get('ETag') };
  }
  const after = Number(response.headers.get('Retry-After') ?? NaN);
  const retryAfter = Number.isFinite(after) ? after : null;
  if (isProblem(body)) {
    return failed(body.code, response.status, body.detail || body.title || '', retryAfter);
  }
  // Jupyter's own page for an address that no extension has.
  const code = response.status === 404 ? OWN.noExtension : OWN.notJson;
  return failed(code, response.status, '', retryAfter);
}

function isProblem(body: unknown): body is { code: string; title?: string; detail?: string } {
  return typeof body === 'object' && body !== null && typeof (body as { code?: unknown }).code === 'string';
}

function failed(code: string, status: number, detail: string, retryAfterSeconds: number | null = null): Answer<never> {
  return { kind: 'fault', fault: { code, status, detail, retryAfterSeconds } };
}
