import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { storeKinds, storeSections } from '../../support/stores.ts';
import { configFor, isReplay, openSandbox, startGateway } from './gateways.ts';

describe.each(storeKinds)('eight gateway processes on one %s', (kind) => {
  let sandbox: Sandbox;
  let gateways: SpawnedGateway[];
  beforeAll(async () => {
    sandbox = await openSandbox();
    const config = configFor(sandbox, await storeSections(kind));
    gateways = await Promise.all(Array.from({ length: 8 }, () => startGateway(config)));
  }, 90_000);

  const urlOf = (at: number) => gateways[at % gateways.length]?.url ?? '';

  it('make one payout of 50 withdraws with one key, and give all the same bytes', async () => {
    const key = randomUUID();
    const burst = Array.from({ length: 50 }, (_, at) => withdraw(urlOf(at), { key, fault: 'delay=200' }));
    const answers = await Promise.all(burst);
    expect(answers.map(({ status }) => status)).toEqual(Array(50).fill(201));
    expect(new Set(answers.map(({ body }) => body.toString()))).toHaveLength(1);
    expect(answers.filter(isReplay)).toHaveLength(49);
    expect(sandbox.requests.ofKey(key)).toBe(1);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('make one payout of each key, when all of them send 40 keys at once', async () => {
    const keys = Array.from({ length: 40 }, () => randomUUID());
    const answers = await Promise.all(
      keys.flatMap((key) => gateways.map(async ({ url }) => ({ key, answer: await withdraw(url, { key }) }))),
    );
    for (const key of keys) {
      const same = answers.filter((one) => one.key === key).map(({ answer }) => answer);
      expect(new Set(same.map(({ status, body }) => `${status} ${body}`))).toHaveLength(1);
      expect(same.filter(isReplay)).toHaveLength(7);
      expect(sandbox.ledger.payouts({ key })).toBe(1);
    }
  });

  it('replay the result of one that was killed right after its answer', async () => {
    const keys = Array.from({ length: 10 }, () => randomUUID());
    const doomed = gateways.pop() as SpawnedGateway;
    const paid = await Promise.all(keys.map((key) => withdraw(doomed.url, { key })));
    expect(await doomed.end('SIGKILL')).toBe('SIGKILL');
    for (const [at, key] of keys.entries()) {
      const replay = await withdraw(urlOf(at), { key });
      expect([replay.status, isReplay(replay), replay.body]).toEqual([201, true, paid[at]?.body]);
      expect(sandbox.ledger.payouts({ key })).toBe(1);
    }
  });
});
