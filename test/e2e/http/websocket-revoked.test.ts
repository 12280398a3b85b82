import { renameSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { Duplex } from 'node:stream';
import { afterAll, describe, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { openBackend } from '../../support/backend.ts';
import { keyFileIn } from '../../support/config.ts';
import { closed } from '../../support/raw.ts';
import { openStack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { HANDSHAKE, head, Wire } from '../../support/wire.ts';

const WITHIN_MS = 1000;
/** Enough time to open two WebSockets. */
const AHEAD_MS = 1500;

/** The backend's ends of the WebSockets. */
const opened: Duplex[] = [];
const server = createServer((_req, res) => res.end());
server.on('upgrade', (_req, socket) => {
  socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
  socket.on('end', () => socket.end()).on('data', (bytes) => socket.write(bytes));
  opened.push(socket);
});
const backend = await openBackend(server);
const stack = await openStack({ upstream: { url: backend.url } });
afterAll(async () => {
  await stack.close();
  await backend.close();
});

/** Replaces the key file: another merchant's key, and `sk_a` with these members. */
function write(more: object | undefined): void {
  const path = keyFileIn(stack.config);
  const keys = more ? [{ id: 'a', dangerouslyPlainSecret: 'sk_a', ...more }] : [];
  const other = { code: 'M-B', keys: [{ id: 'b', dangerouslyPlainSecret: 'sk_b' }] };
  writeFileSync(`${path}.new`, stringify({ merchants: [{ code: 'M-A', keys }, other] }));
  renameSync(`${path}.new`, path);
}

/** Opens a WebSocket with a secret key. */
async function dial(secret: string): Promise<{ wire: Wire; atBackend: Duplex }> {
  const [wire, before] = [await Wire.open(stack.port), opened.length];
  wire.write(head('GET /v3/ws', `Authorization: Bearer ${secret}`, ...HANDSHAKE));
  expect((await wire.answer()).status).toBe(101);
  return { wire, atBackend: opened[before] as Duplex };
}

/** A WebSocket of `sk_a` is closed in time after the time that `ends` returns; one of `sk_b` stays. */
async function expectClosed(ends: () => number): Promise<void> {
  const [ending, other] = [await dial('sk_a'), await dial('sk_b')];
  const atBackendClosed = closed(ending.atBackend);
  const endedAtMs = ends();
  await Promise.all([ending.wire.ended, atBackendClosed]);
  expect(Date.now() - endedAtMs).toBeGreaterThanOrEqual(0);
  expect(Date.now() - endedAtMs).toBeLessThan(WITHIN_MS);
  other.wire.write('still here');
  await other.wire.hears('still here');
  other.wire.socket.destroy();
  await until(async () => (await stack.gateway.metrics.text()).includes('oncegate_in_flight 0'));
}

describe('the WebSockets of a secret key are closed on both sides within a second after', () => {
  test.each<[string, object | undefined]>([
    ['the key was removed from the key file', undefined],
    ['the key was revoked in the key file', { revokedAt: '2020-01-01T00:00:00Z' }],
  ])('%s', async (_, changed) => {
    write({});
    await stack.gateway.reloadKeys();
    await expectClosed(() => {
      write(changed);
      return Date.now();
    });
  });

  test('it has expired', async () => {
    const endsAtMs = Date.now() + AHEAD_MS;
    write({ expiresAt: new Date(endsAtMs).toISOString() });
    await stack.gateway.reloadKeys();
    await expectClosed(() => endsAtMs);
  });
});
