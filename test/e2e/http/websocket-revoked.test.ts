import { once } from 'node:events';
import { renameSync, writeFileSync } from 'node:fs';
import type { Duplex } from 'node:stream';
import { describe, expect, onTestFinished, test } from 'vitest';
import { stringify } from 'yaml';
import { httpBackend } from '../../support/backend.ts';
import { keyFileIn } from '../../support/config.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { head, Wire } from '../../support/wire.ts';

const HANDSHAKE = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
];

const WITHIN_MS = 1000;
/** Enough time to open two WebSockets. */
const AHEAD_MS = 2000;

interface Revocable {
  stack: Stack;
  /** Replaces the key file. */
  write(alpha: object | undefined): void;
  /** Opens a WebSocket with a secret key; `backend` is the backend's end of it. */
  dial(secret: string): Promise<{ wire: Wire; backend: Duplex }>;
}

/** A gateway with two merchants. `alpha` has more members of the first merchant's key. */
async function open(alpha: object = {}): Promise<Revocable> {
  const opened: Duplex[] = [];
  const url = await httpBackend(
    (_req, res) => res.end(),
    (server) =>
      server.on('upgrade', (_req, socket) => {
        socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n');
        socket.on('end', () => socket.end()).on('error', () => {});
        socket.on('data', (bytes) => socket.write(bytes));
        opened.push(socket);
      }),
  );
  const stack = await openStack({ upstream: { url } });
  onTestFinished(() => stack.close());
  const path = keyFileIn(stack.config);
  const write = (more: object | undefined) => {
    const keys = more ? [{ id: 'a', dangerouslyPlainSecret: 'sk_a', ...more }] : [];
    const other = { code: 'M-B', keys: [{ id: 'b', dangerouslyPlainSecret: 'sk_b' }] };
    writeFileSync(`${path}.new`, stringify({ merchants: [{ code: 'M-A', keys }, other] }));
    renameSync(`${path}.new`, path);
  };
  write(alpha);
  await stack.gateway.reloadKeys();
  return {
    stack,
    write,
    async dial(secret) {
      const wire = await Wire.open(stack.port);
      const before = opened.length;
      wire.write(head('GET /v3/ws', `Authorization: Bearer ${secret}`, ...HANDSHAKE));
      expect((await wire.answer()).status).toBe(101);
      return { wire, backend: opened[before] as Duplex };
    },
  };
}

describe('the WebSockets of a secret key are closed on both sides within a second after', () => {
  test.each<[string, object | undefined]>([
    ['the key was removed from the key file', undefined],
    ['the key was revoked in the key file', { revokedAt: '2020-01-01T00:00:00Z' }],
  ])('%s', async (_, changed) => {
    const { stack, write, dial } = await open();
    const [revoked, other] = [await dial('sk_a'), await dial('sk_b')];
    const closed = once(revoked.backend, 'close');
    const changedAtMs = performance.now();
    write(changed);
    await Promise.all([revoked.wire.ended, closed]);
    expect(performance.now() - changedAtMs).toBeLessThan(WITHIN_MS);
    other.wire.write('still here');
    await other.wire.hears('still here');
    other.wire.socket.destroy();
    await until(async () => (await stack.gateway.metrics.text()).includes('oncegate_in_flight 0'));
  });

  test.each(['revokedAt', 'expiresAt'])('its %s', async (member) => {
    const endsAtMs = Date.now() + AHEAD_MS;
    const { dial } = await open({ [member]: new Date(endsAtMs).toISOString() });
    const [ending, other] = [await dial('sk_a'), await dial('sk_b')];
    const closed = once(ending.backend, 'close');
    await Promise.all([ending.wire.ended, closed]);
    expect(Date.now() - endsAtMs).toBeGreaterThanOrEqual(0);
    expect(Date.now() - endsAtMs).toBeLessThan(WITHIN_MS);
    other.wire.write('still here');
    await other.wire.hears('still here');
  });
});

test('a WebSocket stays open when the key file changes and its key stays valid', async () => {
  const { stack, write, dial } = await open();
  const { wire } = await dial('sk_a');
  write({ scopes: ['*'], expiresAt: '2999-01-01T00:00:00Z' });
  await stack.gateway.reloadKeys();
  wire.write('still here');
  await wire.hears('still here');
});
