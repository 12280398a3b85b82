import { randomBytes, randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import type { ConfigInput } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { openGateway, openStack, type Stack, type TestGateway } from '../../support/stack.ts';

const newKey = (id: string) => ({ id, secret: randomBytes(32).toString('base64') });
const [old, current] = [newKey('2025'), newKey('2026')];

describe('gateways with encryption on one store', () => {
  let stack: Stack;
  const gateways: TestGateway[] = [];
  beforeAll(async () => {
    stack = await openStack();
  });
  afterAll(async () => {
    for (const gateway of gateways) await gateway.shutdown();
    await stack?.close();
  });

  /** Another gateway on the same store. */
  async function open(encryption?: object): Promise<TestGateway> {
    const store = { ...stack.config.store, ...(encryption && { encryption }) } as ConfigInput['store'];
    const gateway = await openGateway({ ...stack.config, store });
    gateways.push(gateway);
    return gateway;
  }

  it.each([
    ['without the key', undefined, 'unknown_key', 'it is encrypted with the key "2026"'],
    ['with another secret under its id', { keys: [newKey('2026')] }, 'not_authentic', 'another one here'],
  ])('a gateway %s refuses retries, says why, and pays nothing', async (_, encryption, reason, why) => {
    const [writer, reader] = [await open({ keys: [current] }), await open(encryption)];
    const key = randomUUID();
    const { body } = await withdraw(writer.url, { key });
    for (let retry = 0; retry < 2; retry++)
      expectProblem(await withdraw(reader.url, { key }), {
        status: 503,
        code: 'store_unavailable',
        retryAfter: 1,
      });
    expect((await withdraw(writer.url, { key })).body).toEqual(body);
    expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    expect(
      await metric(reader.adminUrl, 'oncegate_unreadable_records_total', { reason }),
    ).toBeGreaterThanOrEqual(2);
    const line = reader.log.find(({ msg }) => msg === 'a record cannot be read');
    expect(line).toMatchObject({ reason, why: expect.stringContaining(why) });
    const logged = JSON.stringify([...writer.log, ...reader.log]);
    for (const { secret } of [old, current]) expect(logged).not.toContain(secret);
  });
});
