import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { openBlackhole } from '../../support/blackhole.ts';
import { withdraw } from '../../support/client.ts';
import { type MoreConfig, temporaryFolder, testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { expectProblem } from '../../support/problem.ts';
import { openGateway } from '../../support/stack.ts';
import { type StoreKind, storeKinds, storeSections } from '../../support/stores.ts';

interface Unreachable extends AsyncDisposable {
  url: string;
}

const at = (url: string): Unreachable => ({ url, async [Symbol.asyncDispose]() {} });

/** Accepts connections, and never answers the TLS handshake. */
async function muteServer(): Promise<Unreachable> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => sockets.add(socket)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `https://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  };
}

async function blackhole(): Promise<Unreachable> {
  const hole = await openBlackhole();
  return { url: `http://127.0.0.1:${hole.port}`, [Symbol.asyncDispose]: () => hole[Symbol.asyncDispose]() };
}

/** Backends that no byte of a request can reach. */
const cases: [string, (sandbox: Sandbox) => Promise<Unreachable>][] = [
  // A label of more than 63 characters: no name server is asked for it.
  ['has a name that cannot be resolved', async () => at(`http://${'x'.repeat(70)}.test:9000`)],
  ['refuses the connection', async () => at(`http://127.0.0.1:${await freePort()}`)],
  ['does not take the connection in time', blackhole],
  ['speaks no TLS', async (sandbox) => at(sandbox.url.replace('http:', 'https:'))],
  ['does not finish the TLS handshake in time', muteServer],
];

describe.concurrent.each(storeKinds)('on %s, a backend that', (kind: StoreKind) => {
  let sandbox: Sandbox;
  let store: MoreConfig;
  let home: string;
  beforeAll(async () => {
    sandbox = await createSandbox({ port: 0 });
    home = temporaryFolder();
    store = await storeSections(kind);
  });
  afterAll(() => sandbox?.close());

  const newFolder = () => mkdtempSync(join(home, 'gateway-'));
  const configFor = (folder: string, url: string) =>
    testConfig(folder, url, {
      ...store,
      upstream: { connectTimeoutMs: 400, responseTimeoutMs: 10_000 },
    });

  it.each(cases)('%s gets nothing, and the key is free for a retry', async (_, open) => {
    await using unreachable = await open(sandbox);
    const [key, folder] = [randomUUID(), newFolder()];
    const cut = await openGateway(configFor(folder, unreachable.url));
    try {
      // Twice: after the first one's release the second one is tried at once, and does not wait.
      for (const _ of ['first', 'second']) {
        const answer = await withdraw(cut.url, { key });
        expectProblem(answer, { status: 502, code: 'upstream_unreachable' });
      }
    } finally {
      await cut.shutdown();
    }
    expect(sandbox.requests.ofKey(key)).toBe(0);
    expect(sandbox.ledger.payouts({ key })).toBe(0);

    const healed = await openGateway(configFor(folder, sandbox.url));
    try {
      const executed = await withdraw(healed.url, { key });
      expect([executed.status, executed.headers['idempotent-replayed']]).toEqual([201, undefined]);
      const replayed = await withdraw(healed.url, { key });
      expect([replayed.status, replayed.headers['idempotent-replayed']]).toEqual([201, 'true']);
      expect(replayed.body).toEqual(executed.body);
    } finally {
      await healed.shutdown();
    }
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('comes up is used at once by the gateway that could not reach it', async () => {
    const port = await freePort();
    const gateway = await openGateway(configFor(newFolder(), `http://127.0.0.1:${port}`));
    const key = randomUUID();
    try {
      expectProblem(await withdraw(gateway.url, { key }), { status: 502, code: 'upstream_unreachable' });
      const late = await createSandbox({ port });
      try {
        expect((await withdraw(gateway.url, { key })).status).toBe(201);
        expect(late.ledger.payouts({ key })).toBe(1);
      } finally {
        await late.close();
      }
      // The key is completed, so the backend is not needed any more.
      expect((await withdraw(gateway.url, { key })).status).toBe(201);
    } finally {
      await gateway.shutdown();
    }
  });
});
