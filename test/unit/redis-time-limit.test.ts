import { Redis } from 'ioredis';
import { expect, it } from 'vitest';
import { Commands, scripts } from '../../src/store/redis/commands.ts';
import { ScriptCommand } from '../../src/store/redis/script-command.ts';

const LIMIT_MS = 30;
const newCommand = () => new ScriptCommand('evalsha', ['sha', 1, 'key']);
const endOf = (command: ScriptCommand) =>
  command.promise.then(
    () => 'answered',
    (error: Error) => error.message,
  );

it('a time limit holds for each command, also behind answered ones', async () => {
  const commands = Array.from({ length: 50 }, newCommand);
  const ends = commands.map(endOf);
  const startedMs = performance.now();
  for (const [i, command] of commands.entries()) {
    command.setTimeout(LIMIT_MS);
    if (i % 3 > 0) command.resolve(Buffer.from('ok'));
  }
  const expected = commands.map((_, i) => (i % 3 > 0 ? 'answered' : 'Command timed out'));
  expect(await Promise.all(ends)).toEqual(expected);
  expect(performance.now() - startedMs).toBeGreaterThanOrEqual(LIMIT_MS - 1);
});

it('a command that is sent again after a redirection keeps its time limit', async () => {
  const [redirected, next, last] = [newCommand(), newCommand(), newCommand()];
  const ends = [redirected, next, last].map(endOf);
  redirected.setTimeout(LIMIT_MS);
  next.setTimeout(LIMIT_MS);
  redirected.setTimeout(LIMIT_MS);
  last.setTimeout(LIMIT_MS);
  next.resolve(Buffer.from('ok'));
  expect(await Promise.all(ends)).toEqual(['Command timed out', 'answered', 'Command timed out']);
});

it('a write that waited for another one is not sent on a new connection, which may lead to an empty redis', async () => {
  const client = new Redis({ lazyConnect: true });
  const { promise: acknowledged, resolve } = Promise.withResolvers<number>();
  const sent: unknown[] = [];
  Object.assign(client, {
    ...{ status: 'ready', stream: {}, wait: () => acknowledged },
    sendCommand: async (command: unknown) => void sent.push(command),
  });
  const commands = new Commands(client, 1, 1000, ['key']);
  const read = () => 'written';
  const write = () => commands.write(scripts.create, ['key'], [], read, () => 'nothing');
  await write();
  const waiting = write();
  Object.assign(client, { stream: {} });
  resolve(1);
  await expect(waiting).rejects.toThrow('redis: connected again');
  await write();
  expect(sent).toHaveLength(2);
});
