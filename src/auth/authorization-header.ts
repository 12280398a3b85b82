import type { AuthOptions } from './options.ts';

/**
 * What the backend gets as Authorization, given what the merchant sent; undefined: no such header.
 * The backend resolves the merchant from it, which is why it is kept unless configured otherwise.
 */
export function forwardAuthorization(
  options: Pick<AuthOptions, 'forward' | 'replaceWith'>,
): (value: string) => string | undefined {
  const { forward, replaceWith } = options;
  if (forward === 'keep') return (value) => value;
  return () => (forward === 'replace' ? replaceWith : undefined);
}
