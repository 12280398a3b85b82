import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { parsedConfig } from '../../support/config.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { scrape } from './support/scrape.ts';
import { idle } from './support/traffic.ts';

describe('metrics of single merchants', () => {
  let stack: Stack;
  beforeAll(async () => {
    stack = await openStack({ metrics: { merchants: ['M-ALPHA', 'M-NEVER-SEEN'] } });
  });
  afterAll(() => stack.close());
  const bravo = 'sk_sandbox_bravo';
  const requests = async () =>
    (await idle(stack.adminUrl)).table('oncegate_merchant_requests_total', 'merchant', 'outcome');
  const labels = async (name: string) =>
    [...((await scrape(stack.adminUrl)).labelsOf(name)?.get('merchant') ?? [])].sort();

  it('begin at 0 for those that the configuration names, and for all others', async () => {
    expect(await requests()).toEqual({});
    for (const name of ['requests_total', 'request_duration_seconds_count', 'in_doubt_total'])
      expect(await labels(`oncegate_merchant_${name}`)).toEqual(['M-ALPHA', 'M-NEVER-SEEN', 'other']);
  });

  it('count requests and doubts of the merchant, and those of all others together', async () => {
    const { url } = stack;
    for (const status of [201, 201]) expect((await withdraw(url, { key: 'a' })).status).toBe(status);
    for (const secret of [bravo, 'sk_sandbox_charlie'])
      expect((await withdraw(url, { key: 'b', secret })).status).toBe(201);
    for (const secret of ['sk_sandbox_alpha_2', bravo]) {
      const lost = await withdraw(url, { key: 'c', secret, fault: 'execute-then-reset' });
      expect(lost.status).toBe(502);
    }
    // Nobody knows the merchant.
    expect((await withdraw(url, { secret: 'sk_nobody' })).status).toBe(401);
    expect((await send(url)).status).toBe(401);
    expect(await requests()).toEqual({
      'M-ALPHA executed': 1,
      'M-ALPHA replayed': 1,
      'M-ALPHA outcome_unknown': 1,
      'other executed': 2,
      'other outcome_unknown': 1,
    });
    const shown = await scrape(stack.adminUrl);
    expect(shown.table('oncegate_merchant_in_doubt_total', 'merchant')).toEqual({ 'M-ALPHA': 1, other: 1 });
    const counts = { 'M-ALPHA': 3, other: 3 };
    expect(shown.table('oncegate_merchant_request_duration_seconds_count', 'merchant')).toEqual(counts);
    expect(shown.value('oncegate_merchant_request_duration_seconds_sum')).toBeGreaterThan(0);
  });

  it('change with a reload, and a merchant that is no longer named counts with all others', async () => {
    const { gateway, config, url } = stack;
    gateway.reload(parsedConfig({ ...config, metrics: { merchants: ['M-BRAVO'] } }));
    for (const secret of ['sk_sandbox_alpha', bravo])
      expect((await withdraw(url, { key: 'd', secret })).status).toBe(201);
    expect(await requests()).toEqual({
      'M-BRAVO executed': 1,
      'other executed': 3,
      'other outcome_unknown': 1,
    });
    for (const name of ['requests_total', 'request_duration_seconds_count', 'in_doubt_total'])
      expect(await labels(`oncegate_merchant_${name}`)).toEqual(['M-BRAVO', 'other']);
    gateway.reload(parsedConfig({ ...config, metrics: { merchants: ['M-ALPHA', 'M-BRAVO'] } }));
    expect((await withdraw(url, { key: 'e' })).status).toBe(201);
    expect(await requests()).toMatchObject({
      'M-ALPHA executed': 1,
      'M-BRAVO executed': 1,
      'other executed': 3,
    });
  });
});
