import { expect, it } from 'vitest';
import { ScriptCommand } from '../../src/idempotency/stores/redis/script-command.ts';

const LIMIT_MS = 30;
const newCommand = () => new ScriptCommand('evalsha', 'sha', ['key'], []);
const endOf = (command: ScriptCommand) =>
  command.promise.then(
    () => 'answered',
    (error: Error) => error.message,
  );

it('a command without an answer is rejected after its time limit, and not before', async () => {
  const startedMs = performance.now();
  const command = newCommand();
  command.setTimeout(LIMIT_MS);
  expect(await endOf(command)).toBe('Command timed out');
  expect(performance.now() - startedMs).toBeGreaterThanOrEqual(LIMIT_MS - 1);
});

it('a time limit holds for each command, also behind answered ones', async () => {
  const commands = Array.from({ length: 50 }, newCommand);
  const ends = commands.map(endOf);
  for (const [i, command] of commands.entries()) {
    command.setTimeout(LIMIT_MS);
    if (i % 3 > 0) command.resolve(Buffer.from('ok'));
  }
  const expected = commands.map((_, i) => (i % 3 > 0 ? 'answered' : 'Command timed out'));
  expect(await Promise.all(ends)).toEqual(expected);
});

it('a command that is sent again after a redirection keeps its place in the queue of time limits', async () => {
  const [redirected, next, last] = [newCommand(), newCommand(), newCommand()];
  const ends = [redirected, next, last].map(endOf);
  redirected.setTimeout(LIMIT_MS);
  next.setTimeout(LIMIT_MS);
  redirected.setTimeout(LIMIT_MS);
  // A queue that links back to an earlier command would have no end.
  expect(next.newer).toBeUndefined();
  last.setTimeout(LIMIT_MS);
  next.resolve(Buffer.from('ok'));
  expect(await Promise.all(ends)).toEqual(['Command timed out', 'answered', 'Command timed out']);
});

it('an answered command leaves the queue with the next one', () => {
  const [answered, next] = [newCommand(), newCommand()];
  answered.setTimeout(LIMIT_MS);
  answered.resolve(Buffer.from('ok'));
  next.setTimeout(LIMIT_MS);
  expect(answered.newer).toBeUndefined();
  next.resolve(Buffer.from('ok'));
});
