import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { httpBackend } from '../../support/backend.ts';
import { isReplay, send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { configFile, keyFileIn, replaceFile } from '../../support/config.ts';
import { closed } from '../../support/raw.ts';
import { gatewayForTest, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { acceptUpgrade } from '../../support/web-sockets.ts';
import { HANDSHAKE, head, Wire } from '../../support/wire.ts';
import { keys, newKey, PEPPER } from '../command-line/key-commands.ts';

const WITHIN_MS = 1000;

it('issue, rotate and revoke are in force on two gateways within a second, and a retry finds its payout', async () => {
  const path = join(newFolder(), 'keys.yaml');
  const first = await newKey(['issue', '--file', path, '--merchant', 'M-ALPHA']);
  const auth = {
    // The sandbox does not know the new keys.
    forward: 'replace',
    replaceWith: 'Bearer sk_sandbox_alpha',
    pepper: PEPPER,
    keys: { source: 'file', path },
  } as const;
  const one = await stackForTest({ auth });
  const other = await gatewayForTest(one.config);
  const statusOf = async ({ url }: { url: string }, secret: string) =>
    (await send(url, { path: '/v2/get_balance', headers: { Authorization: `Bearer ${secret}` } })).status;
  /** How long it takes until both gateways answer this secret key with the status. */
  const msUntil = async (secret: string, status: number) => {
    const startedMs = performance.now();
    for (const gateway of [one, other]) await until(async () => (await statusOf(gateway, secret)) === status);
    return performance.now() - startedMs;
  };
  const file = configFile(one.config);
  const at = ['--config', file];
  const key = randomUUID();
  const paid = await withdraw(one.url, { secret: first, key });
  expect(paid.status).toBe(201);

  const second = await newKey(['rotate', ...at, '--merchant', 'M-ALPHA', '--overlap', '1h']);
  expect(await msUntil(second, 200)).toBeLessThan(WITHIN_MS);
  expect(await statusOf(one, first)).toBe(200);
  const retried = await withdraw(other.url, { secret: second, key });
  expect([retried.status, isReplay(retried), retried.body]).toEqual([201, true, paid.body]);
  expect(one.sandbox.ledger.payouts({ key })).toBe(1);

  const [{ id: oldId }] = JSON.parse((await keys(['list', ...at, '--json'])).stdout);
  expect(await keys(['revoke', ...at, '--merchant', 'M-ALPHA', '--id', oldId])).toMatchObject({ code: 0 });
  expect(await msUntil(first, 401)).toBeLessThan(WITHIN_MS);
  expect(await statusOf(one, second)).toBe(200);
  expect(await statusOf(one, `${second.slice(0, -1)}-`)).toBe(401);

  const listed = await keys(['list', ...at]);
  expect(listed.stdout).toMatch(/M-ALPHA +\S+ +revoked.*\nM-ALPHA +\S+ +in force/);
  expect(listed.stdout + JSON.stringify([one.log, other.log])).not.toMatch(/og_live_|hmac-sha256/);
});

describe('the WebSockets of a secret key are closed on both sides within a second after', () => {
  it('the key was revoked in the key file', async () => {
    const atBackend: Duplex[] = [];
    const url = await httpBackend(
      (_req, res) => res.end(),
      (server) =>
        server.on('upgrade', (_req, socket) => {
          acceptUpgrade(socket);
          socket.on('data', (bytes) => socket.write(bytes));
          atBackend.push(socket);
        }),
    );
    const stack = await stackForTest({ upstream: { url } });
    /** Replaces the key file: another merchant's key, and `sk_a` with each of these members. */
    const write = (members: object[]) => {
      const path = keyFileIn(stack.config);
      const keys = members.map((more) => ({ id: 'a', dangerouslyPlainSecret: 'sk_a', ...more }));
      const other = { code: 'M-B', keys: [{ id: 'b', dangerouslyPlainSecret: 'sk_b' }] };
      replaceFile(path, stringify({ merchants: [{ code: 'M-A', keys }, other] }));
    };
    const dial = async (secret: string) => {
      const wire = await Wire.open(stack.port);
      wire.write(head('GET /v3/ws', `Authorization: Bearer ${secret}`, ...HANDSHAKE));
      expect((await wire.answer()).status).toBe(101);
      return wire;
    };
    write([{}]);
    await stack.gateway.reloadKeys();
    const [ending, other] = [await dial('sk_a'), await dial('sk_b')];
    const bothClosed = Promise.all([ending.ended, closed(atBackend[0] as Duplex)]);
    const startedMs = performance.now();
    write([{ revokedAt: '2020-01-01T00:00:00Z' }]);
    await bothClosed;
    expect(performance.now() - startedMs).toBeLessThan(WITHIN_MS);
    other.write('still here');
    await other.hears('still here');
  });
});
