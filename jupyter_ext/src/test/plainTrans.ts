/** English, as JupyterLab gives it where no language is chosen. */
import type { Trans } from '../words';

function filled(text: string, args: readonly unknown[]): string {
  return text.replace(/%(\d+)/g, (_, place: string) => String(args[Number(place) - 1]));
}

export const trans = {
  __: (text: string, ...args: unknown[]) => filled(text, args),
  _n: (one: string, many: string, n: number, ...args: unknown[]) => filled(n === 1 ? one : many, [n, ...args])
} as unknown as Trans;
