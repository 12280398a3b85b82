/** Gateways in series on one store: the field `oncegate-hops` shows a request that comes to the same layer and store again. */
import type { IncomingHttpHeaders } from 'node:http';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { testConfig } from '../../support/config.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { expectProblem } from '../../support/problem.ts';
import { type Started, startHere } from '../../support/started.ts';

const HOP = /^[a-z]+;[0-9a-f]{16}$/;

/** A backend that pays, and answers with every field of the request. */
async function payingBackend() {
  const seen: IncomingHttpHeaders[] = [];
  const url = await httpBackend((req, res) => {
    seen.push(req.headers);
    res.writeHead(201, { 'Oncegate-Hops': String(req.headers['oncegate-hops']) }).end('{}');
  });
  return { url, seen, hops: () => seen.map((headers) => headers['oncegate-hops']) };
}

/** A gateway with an identity file of its own, on the store of a folder. */
async function onStore(path: string, upstream: string, layer: string): Promise<Started> {
  const folder = newFolder();
  const more = { store: { kind: 'sqlite' as const, path }, idempotency: { layer } };
  return await startHere(testConfig(folder, upstream, more), folder);
}

it('two gateways in series on one store refuse a request at once, because the second layer has the name of the first', async () => {
  const backend = await payingBackend();
  const path = join(newFolder(), 'data');
  const inner = await onStore(path, backend.url, 'gateway');
  const outer = await onStore(path, inner.url, 'gateway');
  const startedMs = performance.now();
  expectProblem(await withdraw(outer.url, { key: 'k-1' }), { status: 508, code: 'loop_detected' });
  // A duplicate would wait for 10 s.
  expect(performance.now() - startedMs).toBeLessThan(5000);
  expect(backend.seen).toEqual([]);
  // The outer one has released the key, and the inner one has stored nothing.
  expect((await withdraw(inner.url, { key: 'k-1' })).status).toBe(201);
  expect(backend.hops()).toEqual([expect.stringMatching(HOP)]);
});

it('a request with a key is refused for its hops, and any other one has them passed on', async () => {
  const backend = await payingBackend();
  const gateway = await onStore(join(newFolder(), 'data'), backend.url, 'gateway');
  const hop = (n: number) => `other;${String(n).padStart(16, '0')}`;
  const seven = Array.from({ length: 7 }, (_, n) => hop(n));
  let used = 0;
  const pay = (hops: string | string[]) =>
    withdraw(gateway.url, { key: `k-${++used}`, headers: { 'Oncegate-Hops': hops } });
  expect((await pay(hop(1))).status).toBe(201);
  expect((await pay([seven.slice(0, 3).join(','), seven.slice(3).join(' , ')])).status).toBe(201);
  const [one, full] = backend.hops();
  const own = String(one).split(', ')[1];
  expect([one, full]).toEqual([`${hop(1)}, ${own}`, [...seven, own].join(', ')]);
  const refused = {
    'its own hop': own as string,
    'its own hop in another line': [hop(1), own as string],
    'eight hops': [...seven, hop(8)].join(', '),
    'no hop': '',
    'an empty hop': `${hop(1)}, `,
    'no store': 'gateway',
    'a short id': 'gateway;0123',
    'an upper-case layer': `Gateway;${'0'.repeat(16)}`,
  };
  await eachRowInTurn(Object.entries(refused), async ([, hops]) =>
    expectProblem(await pay(hops), { status: 508, code: 'loop_detected' }),
  );
  expect(backend.seen).toHaveLength(2);

  const passed = [String(own), 'not a hop', undefined];
  for (const hops of passed)
    await withdraw(gateway.url, hops === undefined ? {} : { headers: { 'Oncegate-Hops': hops } });
  const headers = { Authorization: 'Bearer sk_sandbox_alpha', 'Oncegate-Hops': 'streamed' };
  const streamed = await send(gateway.url, { method: 'PUT', path: '/undeclared', headers, body: 'x' });
  expect(streamed.headers).not.toHaveProperty('oncegate-hops');
  expect(backend.hops().slice(2)).toEqual([...passed, 'streamed']);
});
