import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Store } from '../../src/ledger/ledger.ts';
import { connect, createClient, mastersOf } from '../../src/store/redis/client.ts';
import { Commands, Names, scripts } from '../../src/store/redis/commands.ts';
import { type Execution, StoreUnavailable } from '../../src/store/types.ts';
import { LONG, openStore, type StoreTimes } from '../support/open-store.ts';
import { monitorRedis } from '../support/redis-monitor.ts';
import { startRedis } from '../support/redis-server.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { startProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { bring, replayOf } from './states.ts';

/** Long enough for a server that has to wait for its turn on a loaded machine. */
const TIMEOUT_MS = 1500;

const note = { by: 'ada', reason: 'in the books' };

/** A redis behind a proxy that can break the connection, a store on the proxy, and a witness: a store without proxy. */
async function withWire(times: Partial<StoreTimes> = { timeoutMs: TIMEOUT_MS }) {
  const server = await startRedis();
  const wire = await startProxy(server.port);
  const place = { kind: 'redis', prefix: 'test' } as const;
  const store = await openStore({ ...place, url: wire.url }, times);
  const witness = await openStore({ ...place, url: server.url }, { ...times, timeoutMs: 10_000 });
  // These calls load all scripts into the server.
  const owner = await bring(witness, 'in_doubt');
  const successor = duplicateOf(owner);
  await witness.restart(successor);
  await witness.renew(successor);
  await witness.complete(successor, paid());
  await witness.peek(successor);
  await witness.release(successor);
  await witness.resolve(successor.recordId, successor.token, { as: 'released' }, note);
  const stateOf = async ({ recordId }: Execution) => (await witness.get(recordId))?.state;
  const healed = async () => await until(async () => (await store.health()).ok);
  const dispose = async () => {
    await Promise.all([store.close(), witness.close()]);
    await wire.close();
    await server.stop();
  };
  return { server, wire, store, witness, stateOf, healed, [Symbol.asyncDispose]: dispose };
}

const writes = {
  complete: (store: Store, owner: Execution) => store.complete(owner, paid('first')),
  leaveInDoubt: (store: Store, owner: Execution) => store.leaveInDoubt(owner),
  release: (store: Store, owner: Execution) => store.release(owner),
  restart: (store: Store, owner: Execution) => store.restart(owner),
};

describe.concurrent('when a reply is lost on the wire', () => {
  it('a write has happened if it is one command, and is repeated until it is answered', async () => {
    await using line = await withWire();
    const { wire, store, stateOf, healed } = line;
    const rows = [
      ['complete', 'executing', 'completed', 'ok', 'completed'],
      // The first command of these reads, or finds that somebody has marked the record.
      ['complete', 'in_doubt', 'in_doubt', 'ok', 'completed'],
      ['release', 'in_doubt', 'in_doubt', 'ok', undefined],
      ['restart', 'in_doubt', 'in_doubt', 'ok', 'executing'],
      ['leaveInDoubt', 'executing', 'in_doubt', 'ok', 'in_doubt'],
      ['release', 'executing', undefined, 'stale', undefined],
    ] as const;
    const cases = await Promise.all(
      rows.map(async ([write, from, ...expected]) => {
        const first = await bring(store, from);
        return { write, owner: write === 'restart' ? duplicateOf(first) : first, expected };
      }),
    );
    wire.swallowReplies(true);
    const lost = await Promise.allSettled(cases.map(({ write, owner }) => writes[write](store, owner)));
    for (const answer of lost)
      expect(answer).toEqual({ status: 'rejected', reason: expect.any(StoreUnavailable) });
    const states = await Promise.all(cases.map(({ owner }) => stateOf(owner)));
    wire.swallowReplies(false);
    await healed();
    for (const [at, { write, owner, expected }] of cases.entries()) {
      const again = await writes[write](store, owner);
      expect([states[at], again, await stateOf(owner)]).toEqual(expected);
    }
  });

  it('a late answer is not taken for the answer to another command', async () => {
    await using line = await withWire();
    const { wire, store } = line;
    const [owner, completed] = [await bring(store, 'executing'), await bring(store, 'completed')];
    wire.delayReplies(TIMEOUT_MS + 700);
    const late = [store.start(newRequest()), store.renew(owner), store.get(completed.recordId)];
    const rejected = late.map((call) => expect(call).rejects.toThrow(StoreUnavailable));
    await Promise.race(rejected);
    wire.delayReplies(0);
    await Promise.all(rejected);
    expect(await store.get(newRequest().recordId)).toBeUndefined();
    expect(await store.start(duplicateOf(completed))).toEqual(replayOf(paid(), completed));
    expect(await store.start(duplicateOf(owner))).toEqual({ kind: 'in_flight' });
    expect(await store.get(owner.recordId)).toMatchObject({ state: 'executing' });
  });
});

describe.concurrent('when the connection is cut', () => {
  it.each([
    ['start', 'set'],
    ['release', 'del'],
  ] as const)('during a %s, the script is executed once', async (write, command) => {
    await using line = await withWire({});
    const { server, wire, store, healed } = line;
    const owner = write === 'start' ? newRequest() : await bring(store, 'executing');
    const before = await server.commandCount(command);
    wire.delayReplies(10_000);
    const failure = store[write](owner).catch((error: unknown) => error);
    await until(async () => (await server.commandCount(command)) > before);
    wire.cut();
    expect(await failure).toMatchObject({ name: 'StoreUnavailable', maybeWritten: true });
    const after = await server.commandCount(command);
    wire.delayReplies(0);
    expect(after - before).toBe(1);
    // Reads only, because the probe of a health check is a SET, too.
    await until(() =>
      store.get(owner.recordId).then(
        () => true,
        () => false,
      ),
    );
    expect(await server.commandCount(command)).toBe(after);
    await healed();
  });

  it('in silence, the store finds another connection, and what had no answer can be repeated', async () => {
    await using line = await withWire({ timeoutMs: 300 });
    const { server, wire, store, stateOf, healed } = line;
    // A sync of the disk may take longer than this store waits for a command.
    await server.admin.config('SET', 'appendfsync', 'no');
    const owner = await bring(store, 'executing');
    const accepted = wire.accepted;
    wire.silence();
    await expect(store.complete(owner, paid())).rejects.toMatchObject({ maybeWritten: true });
    await healed();
    expect(wire.accepted).toBe(accepted + 1);
    expect(await store.complete(owner, paid())).toBe('ok');
    expect(await stateOf(owner)).toBe('completed');
  });

  it('and refused for a while, calls fail at once as never sent, and work after the reconnect', async () => {
    await using line = await withWire({});
    const { wire, store, stateOf, healed } = line;
    const owner = await bring(store, 'executing');
    wire.refuse(true);
    wire.cut();
    await until(async () => !(await store.health()).ok);
    const startedMs = performance.now();
    const failure = await store.complete(owner, paid()).catch((error: unknown) => error);
    expect(failure).toMatchObject({ name: 'StoreUnavailable', maybeWritten: false });
    expect(performance.now() - startedMs).toBeLessThan(LONG.timeoutMs / 4);
    wire.refuse(false);
    await healed();
    expect(await stateOf(owner)).toBe('executing');
    expect(await store.complete(owner, paid())).toBe('ok');
  });
});

describe.concurrent('a store on Redis', () => {
  it('shows nothing of a record to a tracer of ioredis, but the names of keys', async () => {
    await using line = await withWire({});
    const shown: string[] = [];
    const show = (message: unknown) => shown.push(...(message as { args: string[] }).args);
    const commands = 'tracing:ioredis:command:start';
    subscribe(commands, show);
    const owner = newRequest({ merchant: 'M-traced' });
    await line.store.start(owner);
    await line.store.complete(owner, paid('p-traced'));
    unsubscribe(commands, show);
    const id = Buffer.from(owner.recordId, 'hex').toString('base64url');
    expect(shown.filter((text) => text.endsWith(`:${id}`)).length).toBeGreaterThanOrEqual(2);
    for (const content of ['traced', owner.key, owner.token.toString()])
      expect(shown.join()).not.toContain(content);
  });

  it('sends two commands for a first execution, and one for a replay or a duplicate', async () => {
    await using line = await withWire({});
    const { server, store } = line;
    // A new client of the test also sends INFO.
    await server.admin.ping();
    const seen: string[] = [];
    await monitorRedis(server.port, ({ name }) => seen.push(name));
    const commandsOf = async (work: () => Promise<unknown>) => {
      seen.length = 0;
      await work();
      // MONITOR shows commands in the order of their execution.
      await server.admin.echo('end');
      await until(() => seen.includes('echo'));
      return seen.slice(0, seen.indexOf('echo'));
    };
    const owner = newRequest();
    expect(await commandsOf(() => store.start(owner))).toEqual(['evalsha']);
    expect(await commandsOf(() => store.start(duplicateOf(owner)))).toEqual(['evalsha']);
    expect(await commandsOf(() => store.complete(owner, paid()))).toEqual(['evalsha']);
    expect(await commandsOf(() => store.start(duplicateOf(owner)))).toEqual(['evalsha']);
    expect(await commandsOf(() => store.peek(duplicateOf(owner)))).toEqual(['evalsha']);
  });
});

/** As many redirections as ioredis follows. */
const REDIRECTIONS = 16;
const LIMIT_MS = 1000;

/** The commands of a cluster whose two masters redirect each script to one another, and answer nothing after so many redirections. */
async function redirected(redirections: number) {
  const ports: number[] = [];
  const slotsOf = (first: number, last: number, port = 0) =>
    `*3\r\n:${first}\r\n:${last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:${port}\r\n`;
  const answerOf = (port: number, command: string): string => {
    if (command.startsWith('CLUSTER'))
      return `*2\r\n${slotsOf(0, 8191, ports[0])}${slotsOf(8192, 16_383, ports[1])}`;
    if (command.startsWith('INFO')) return '$9\r\nloading:0\r\n';
    if (!command.startsWith('EVALSHA')) return '-ERR unknown command HELLO\r\n';
    const other = ports.find((each) => each !== port);
    return redirections-- > 0 ? `-MOVED 12539 127.0.0.1:${other}\r\n` : '';
  };
  for (let left = 2; left > 0; left--) {
    const server = createServer((client) => {
      onTestFinished(() => void client.destroy());
      // Each command begins with its number of parts, and each of its parts with its length.
      client.on('data', (bytes) => {
        const [, ...commands] = bytes.toString('latin1').split(/^\*\d+\r\n\$\d+\r\n/m);
        for (const command of commands)
          client.write(answerOf(client.localPort as number, command.toUpperCase()));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    onTestFinished(() => void server.close());
    ports.push((server.address() as AddressInfo).port);
  }
  const client = createClient({ cluster: ports.map((port) => `redis://127.0.0.1:${port}`) }, LIMIT_MS);
  onTestFinished(() => client.disconnect());
  await connect(client, 10_000);
  // ioredis follows no redirection to a master that it is connecting to.
  await Promise.allSettled(mastersOf(client).map((master) => master.ping()));
  return new Commands(client, 0, LIMIT_MS, new Names('test').partitions);
}

describe('when masters of a cluster redirect a write to one another', () => {
  it.each([
    ['without end, it has surely not happened', Number.POSITIVE_INFINITY, false],
    ['until one takes it and does not answer, it may have happened', REDIRECTIONS, true],
  ])('%s', async (_, redirections, maybeWritten) => {
    const commands = await redirected(redirections);
    const written = commands.write(scripts.create, ['key'], ['record'], () => 'written');
    await expect(written).rejects.toMatchObject({
      ...{ name: 'StoreUnavailable', maybeWritten },
      message: expect.stringContaining('Too many Cluster redirections'),
    });
  });
});
