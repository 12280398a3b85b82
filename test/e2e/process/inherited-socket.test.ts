import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { describe, expect, it, onTestFinished } from 'vitest';
import { Authority } from '../../support/certificates.ts';
import { isReplay, send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { configFile, configFor } from '../../support/config.ts';
import { openSharedSocket } from '../../support/shared-socket.ts';
import { MAIN, type SpawnedGateway, spawnGateway, spawnInheriting, track } from '../../support/spawn.ts';
import { openSandbox } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { startTraffic } from './traffic.ts';

const authority = new Authority();
const MERCHANTS = 6;

/** A shared socket, and what starts an instance on it. Its configuration has another port. */
async function open({ tls = false, delayMs = 300 } = {}) {
  const [sandbox, socket] = await Promise.all([openSandbox(), openSharedSocket()]);
  onTestFinished(() => socket.close());
  const listen = { host: '127.0.0.1', port: 1, ...(tls && { tls: authority.issue() }) };
  const config = configFor(sandbox, { listen, shutdown: { delayMs, graceMs: 10_000 } });
  const start = () => spawnGateway(config, {}, { inherited: socket.handle });
  return { sandbox, socket, config, start };
}

const served = ({ lines }: SpawnedGateway): number =>
  lines.filter((line) => line.includes('"msg":"request"')).length;

const isDraining = async ({ adminUrl }: SpawnedGateway): Promise<boolean> =>
  (await send(adminUrl, { path: '/readyz' })).status === 503;

describe('instances on one inherited socket', () => {
  it('execute each key once, and restart in turn under load without a refusal, a reset or a lost payout', async () => {
    const { sandbox, socket, start } = await open({ tls: true });
    const instances = await Promise.all([start(), start()]);
    for (const { port } of instances) expect(port).toBe(socket.port);
    const url = `https://127.0.0.1:${socket.port}`;
    const ca = authority.caBytes;
    let paid = 0;
    await until(async () => {
      const keys = Array.from({ length: 10 }, () => randomUUID());
      const pay = (key: string) => withdraw(url, { key, ca, fault: 'delay=50' });
      const answers = await Promise.all(keys.map((key) => Promise.all([pay(key), pay(key), pay(key)])));
      for (const all of answers) {
        expect(all.map(({ status }) => status)).toEqual([201, 201, 201]);
        expect(all.filter(isReplay)).toHaveLength(2);
      }
      paid += keys.length;
      return instances.every((instance) => served(instance) > 0);
    });
    const traffic = [true, false].map((keepAlive) => startTraffic(url, MERCHANTS, { keepAlive, ca }));
    const sent = () => traffic.flatMap((some) => some.sent);
    const progress = async () => {
      const before = sent().length;
      await until(() => sent().length > before + 5 * MERCHANTS);
    };
    for (const at of [0, 1]) {
      await progress();
      expect(await instances[at]?.end()).toBe(0);
      await progress();
      instances[at] = await start();
    }
    await progress();
    await Promise.all(traffic.map((some) => some.stop()));
    expect(sent().filter(({ answer }) => answer?.status !== 201)).toEqual([]);
    expect(sandbox.ledger.payouts()).toBe(sent().length + paid);
    expect(sandbox.requests.total()).toBe(sent().length + paid);
    expect(sandbox.ledger.duplicateKeys()).toEqual([]);
    for (const instance of instances) expect(await instance.end()).toBe(0);
  });

  it('leave every new connection to the others as soon as they stop', async () => {
    const { socket, start } = await open({ delayMs: 5000 });
    const [stopping, other] = await Promise.all([start(), start()]);
    const ended = stopping.end();
    await until(() => isDraining(stopping));
    const before = [served(stopping), served(other)];
    const visits = Array.from({ length: 20 }, () => send(`http://127.0.0.1:${socket.port}`));
    for (const { status } of await Promise.all(visits)) expect(status).toBe(401);
    await until(() => served(other) === (before[1] as number) + 20);
    expect(served(stopping)).toBe(before[0]);
    expect(await isDraining(stopping)).toBe(true);
    // The second signal: the rest of the delay would show nothing.
    process.kill(stopping.pid, 'SIGTERM');
    expect(await ended).toBe(1);
  });
});

describe('a single instance on an inherited socket', () => {
  it('restarts while connections wait for it, also for one that cannot start', async () => {
    const { sandbox, socket, config, start } = await open();
    const url = `http://127.0.0.1:${socket.port}`;
    // The socket listens before the gateway has been started.
    const first = withdraw(url, { key: 'first' });
    let instance = await start();
    expect((await first).status).toBe(201);
    expect(await instance.end()).toBe(0);
    const waiting = ['one', 'two', 'three'].map((key) => withdraw(url, { key }));
    const admin = { host: '127.0.0.1', port: socket.port };
    await expect(spawnGateway({ ...config, admin }, {}, { inherited: socket.handle })).rejects.toThrow(
      'is in use',
    );
    instance = await start();
    for (const { status } of await Promise.all(waiting)) expect(status).toBe(201);
    expect(sandbox.ledger.payouts()).toBe(4);
    expect(await instance.end()).toBe(0);
  });
});

it('anything but one listening TCP socket is refused in a sentence', async () => {
  const { config } = await open();
  const file = configFile(config);
  const unix = createServer().listen(join(newFolder(), 'socket'));
  const tcp = createServer().listen(0, '127.0.0.1');
  await Promise.all([once(unix, 'listening'), once(tcp, 'listening')]);
  const connection = connect((tcp.address() as AddressInfo).port, '127.0.0.1');
  await once(connection, 'connect');
  onTestFinished(() => {
    connection.destroy();
    for (const server of [unix, tcp]) server.close();
  });
  const { fd } = (unix as unknown as { _handle: { fd: number } })._handle;
  for (const inherited of [fd, connection]) {
    const serve = [process.execPath, MAIN, 'serve', '--config', file] as const;
    const child = track(spawnInheriting([inherited], serve, process.env));
    const [said, [code]] = await Promise.all([
      text(child.stderr as NodeJS.ReadableStream),
      once(child, 'exit'),
    ]);
    expect(code).toBe(78);
    expect(said).toMatch(
      /^oncegate: LISTEN_FDS=1: the inherited file descriptor 3 is not a listening TCP socket/,
    );
  }
});
