import { once } from 'node:events';
import http, { IncomingMessage, type RequestListener, ServerResponse } from 'node:http';
import net, { type AddressInfo, Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Cluster, Redis } from 'ioredis';
import { pino } from 'pino';
import Redlock from 'redlock';
import { expect, onTestFinished, test, vi } from 'vitest';
import { createApp } from '../../src/gateway/app.ts';
import { connect, createClient } from '../../src/store/redis/client.ts';
import { ScriptCommand } from '../../src/store/redis/script-command.ts';
import { requestLogger } from '../../src/telemetry/logger.ts';
import { httpBackend, openBackend } from '../support/backend.ts';
import { send } from '../support/client.ts';
import { startRedis } from '../support/redis-server.ts';
import { until } from '../support/until.ts';

// What the sources use of Node and of libraries although no document of theirs promises it. ADR 5 has the list, and says why.

const TIMEOUT_MS = 2000;

function clientFor<C extends Redis | Cluster>(location: Parameters<typeof createClient>[0]): C {
  const client = createClient(location, TIMEOUT_MS);
  onTestFinished(() => client.disconnect());
  return client as C;
}

/** Starts a Redis that is the only node of a cluster. `answers`: by command. Returns its port, and the names of the commands it got. */
async function fakeCluster(answers: Record<string, string>): Promise<{ port: number; asked: string[] }> {
  const asked: string[] = [];
  const server = net.createServer((socket) => {
    const { port } = server.address() as AddressInfo;
    const all: Record<string, string> = {
      cluster: `*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:${port}\r\n`,
      info: '$9\r\nloading:0\r\n',
      ...answers,
    };
    socket.on('data', (bytes) => {
      for (const [, name = ''] of bytes.toString().matchAll(/\*\d+\r\n\$\d+\r\n(\w+)\r\n/g)) {
        asked.push(name);
        socket.write((all[name] ?? '+OK\r\n').replace('PORT', `${port}`));
      }
    });
  });
  const { close } = await openBackend(server);
  onTestFinished(close);
  return { port: (server.address() as AddressInfo).port, asked };
}

test('ioredis: writes to the stream that its connector has made', async () => {
  const client = clientFor<Redis>({ url: (await startRedis()).url });
  await connect(client, TIMEOUT_MS);
  const answer = client.ping();
  expect(client.stream.writableCorked).toBe(1);
  await answer;
});

test('ioredis: sends what a command encodes, leaves its time limit to it, and answers in bytes', async () => {
  const client = clientFor<Redis>({ url: (await startRedis()).url });
  await connect(client, TIMEOUT_MS);
  const command = new ScriptCommand('eval', ['return ARGV[1]', 0, Buffer.from([0, 255])]);
  expect(await client.sendCommand(command)).toEqual(Buffer.from([0, 255]));
  expect(command.dueMs).toBeGreaterThan(0);
  expect(command.isSettled).toBe(true);
});

test('ioredis: a sentinel’s client is made by connectToSentinel, with the connector that it gets', async () => {
  const { port } = await fakeCluster({});
  const opened = vi.spyOn(net, 'connect');
  onTestFinished(() => opened.mockRestore());
  const client = clientFor<Redis>({ sentinels: { name: 'payments', nodes: [`redis://127.0.0.1:${port}`] } });
  client.connect().catch(() => {});
  await until(() => opened.mock.calls.length > 0);
  expect(opened.mock.calls[0]).toMatchObject([{ port }]);
});

test('ioredis: handleError of a cluster decides whether a refused command is sent again', async () => {
  const { port, asked } = await fakeCluster({ get: '-TRYAGAIN the slot moves\r\n' });
  const client = clientFor<Cluster>({ cluster: [`redis://127.0.0.1:${port}`] });
  await connect(client, TIMEOUT_MS);
  await expect(client.get('key')).rejects.toThrow('TRYAGAIN');
  expect(asked.filter((name) => name === 'get')).toHaveLength(1);
});

test('ioredis: sends ASKING by the method of the node, whose rejection is caught', async () => {
  const rejected: unknown[] = [];
  const onRejected = (reason: unknown) => rejected.push(reason);
  const others = process.rawListeners('unhandledRejection') as ((...args: unknown[]) => void)[];
  process.removeAllListeners('unhandledRejection').on('unhandledRejection', onRejected);
  onTestFinished(() => {
    process.removeAllListeners('unhandledRejection');
    for (const other of others) process.on('unhandledRejection', other);
  });
  const { port, asked } = await fakeCluster({
    get: '-ASK 1 127.0.0.1:PORT\r\n',
    asking: '-ERR not here\r\n',
  });
  const client = clientFor<Cluster>({ cluster: [`redis://127.0.0.1:${port}`] });
  await connect(client, TIMEOUT_MS);
  await expect(client.get('key')).rejects.toThrow('ASK');
  expect(asked).toContain('asking');
  await nextTurn();
  expect(rejected).toEqual([]);
});

test('redlock: a lock is a key with its `value`, and is extended, however late, if its `expiration` is put off', async () => {
  const { admin } = await startRedis();
  const lock = await new Redlock([admin], { retryCount: 0 }).acquire(['lease'], 10_000);
  expect(await admin.get('lease')).toBe(lock.value);
  lock.expiration = 0;
  await expect(lock.extend(10_000)).rejects.toThrow(/expired/);
  lock.expiration = Number.POSITIVE_INFINITY;
  await lock.extend(10_000);
});

test('pino: has the stream of a logger under `symbols.streamSym`', async () => {
  const written = Promise.withResolvers<string>();
  requestLogger(pino({}, { write: written.resolve }))({ path: '/' });
  // pino itself writes the level as a number.
  expect(await written.promise).toMatch(/^\{"level":"info",.*"path":"\/","msg":"request"\}\n$/);
});

test('sonic-boom: has what waits in `_bufs`, and in `_writingBuf` what another thread writes while `_writing`', async () => {
  const output = pino.destination({ dest: '/dev/null', sync: false, minLength: 100, maxWrite: 1000 });
  await once(output, 'ready');
  output.write('line');
  expect(output).toMatchObject({ _writing: false, _writingBuf: '', _bufs: ['line'] });
  output.flush();
  expect(output).toMatchObject({ _writing: true, _writingBuf: 'line', _bufs: [] });
});

test('Express: takes requests and responses of the classes in `request` and `response` as they are', async () => {
  let prototypes: unknown[] = [];
  const { handle, Request, Response } = createApp(
    [
      (_req, _res, next) => next(),
      (req, res) => {
        prototypes = [req, res].map((each) => Object.getPrototypeOf(each));
        res.end();
      },
    ],
    () => {},
  );
  const server = http.createServer({ IncomingMessage: Request, ServerResponse: Response }, handle);
  const { url, close } = await openBackend(server);
  onTestFinished(close);
  await send(url);
  expect(prototypes).toEqual([Request.prototype, Response.prototype]);
});

/** The address of a server, and what it is. */
async function serve(onRequest: RequestListener) {
  let server: http.Server | undefined;
  const url = await httpBackend(onRequest, (made) => {
    server = made;
  });
  return { url, server: server as http.Server };
}

test('Node: a server reads `maxHeaderSize` for each connection', async () => {
  const { url, server } = await serve((_req, res) => res.end());
  const headers = { 'x-long': 'x'.repeat(4000) };
  expect((await send(url, { headers })).status).toBe(200);
  Object.assign(server, { maxHeaderSize: 2048 });
  expect((await send(url, { headers })).status).toBe(431);
});

test('Node: the `close` of net.Server leaves the idle connections of an http.Server open', async () => {
  const { url, server } = await serve((_req, res) => res.end());
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  onTestFinished(() => agent.destroy());
  await send(url, { agent });
  net.Server.prototype.close.call(server);
  expect((await send(url, { agent })).status).toBe(200);
  await expect(send(url)).rejects.toThrow('ECONNREFUSED');
});

test('Node: a response writes to the socket that it is assigned, until it is detached', async () => {
  const written: string[] = [];
  const socket = new Duplex({
    read() {},
    write(chunk, _encoding, done) {
      written.push(`${chunk}`);
      done();
    },
  }) as Socket;
  const res = new ServerResponse(new IncomingMessage(socket));
  res.assignSocket(socket);
  res.writeHead(403).flushHeaders();
  expect(written.join('')).toMatch(/^HTTP\/1\.1 403 Forbidden\r\n/);
  res.detachSocket(socket);
  expect([res.socket, socket.destroyed]).toEqual([null, false]);
});

test('Node: an agent reads its `options` for each new connection', async () => {
  const { url } = await serve((req, res) => res.end(req.socket.remoteAddress));
  const agent = new http.Agent();
  Object.assign((agent as unknown as { options: object }).options, { localAddress: '127.0.0.2' });
  expect((await send(url, { agent })).body.toString()).toBe('127.0.0.2');
});

test('Node: `_implicitHeader` writes the head of a response, and `_header` has it', () => {
  const res = new ServerResponse(new IncomingMessage(new Socket())) as ServerResponse & {
    _header: string | null;
    _implicitHeader(): void;
    getRawHeaderNames(): string[];
  };
  const write = vi.spyOn(res, '_implicitHeader');
  res.setHeader('X-Case', 'kept');
  expect(res.getRawHeaderNames()).toEqual(['X-Case']);
  expect(res._header).toBe(null);
  res.end();
  expect(write).toHaveBeenCalledOnce();
  expect(res._header).toMatch(/^HTTP\/1\.1 200 OK\r\nX-Case: kept\r\n/);
});

test('Node: sets `_closed` and `destroyed` of a response when the merchant leaves', async () => {
  const left = Promise.withResolvers<ServerResponse & { _closed?: boolean }>();
  const { url } = await serve((_req, res) => {
    res.once('close', () => left.resolve(res));
    merchant.destroy();
  });
  const { hostname, port } = new URL(url);
  const merchant = net.connect(Number(port), hostname);
  merchant.write('GET / HTTP/1.1\r\nHost: here\r\n\r\n');
  const res = await left.promise;
  expect([res._closed, res.destroyed]).toEqual([true, true]);
});

test('Node: leaves the body of a request that is `_consuming` to be read after the answer', async () => {
  const agent = new http.Agent({ keepAlive: true });
  onTestFinished(() => agent.destroy());
  const leftOf = async (isConsumed: boolean) => {
    const left = Promise.withResolvers<number>();
    const { url } = await serve((req, res) => {
      if (isConsumed) Object.assign(req, { _consuming: true });
      res.once('finish', () => setImmediate(() => left.resolve(req.readableLength)));
      res.end();
    });
    await send(url, { method: 'POST', body: 'x'.repeat(1000), agent });
    return await left.promise;
  };
  expect([await leftOf(true), await leftOf(false)]).toEqual([1000, 0]);
});
