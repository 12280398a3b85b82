import { expect } from 'vitest';
import { type CommandOptions, run } from '../../support/command.ts';

export const PEPPER = 'a-pepper-of-some-length';

/** Runs `oncegate keys`. */
export const keys = (args: string[], options: CommandOptions = {}) =>
  run(['keys', ...args], { env: { ONCEGATE_PEPPER: PEPPER }, ...options });

/** Runs a command that prints a new secret key alone. */
export async function newKey(args: string[]): Promise<string> {
  const ended = await keys(args);
  expect(ended).toMatchObject({ code: 0 });
  expect(ended.stdout).toMatch(/^og_(?:live|test)_\w{32}_\w{6}\n$/);
  const secret = ended.stdout.trim();
  expect(ended.stderr).not.toContain(secret);
  return secret;
}
