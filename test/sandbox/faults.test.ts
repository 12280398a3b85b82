import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import type { Sandbox } from '../../src/sandbox/create-sandbox.ts';
import { FAULTS, type FaultName } from '../../src/sandbox/faults.ts';
import { until } from '../support/until.ts';
import { ALPHA, type Answer, ask, openSandbox, post, rawWithdraw, WITHDRAW } from './support.ts';

async function withdraw(
  { url }: Sandbox,
  fault: string,
  headers: Record<string, string> = {},
): Promise<Answer> {
  return await post(url, WITHDRAW, { ...ALPHA, ...headers, 'x-sandbox-fault': fault });
}

/** All that a merchant gets, and how the connection ends. */
async function received(sandbox: Sandbox, fault: string) {
  const wire = await rawWithdraw(sandbox, [`X-Sandbox-Fault: ${fault}`, 'Accept-Encoding: br, gzip;q=0.5']);
  return { how: await wire.ended, bytes: wire.rest };
}

/**
 * What a merchant gets, and how many payouts there are then. TypeScript requires a row for every fault.
 * e2e/idempotency/outcomes shows what these do to a gateway.
 */
const CASES: Record<FaultName, [fault: string, bytes: RegExp, payouts: number, how?: 'reset' | 'end']> = {
  delay: ['delay=5', /^HTTP\/1\.1 201 /, 1],
  '500-before': ['500-before', /^HTTP\/1\.1 500 .*sandbox_fault/s, 0],
  '503-before': ['503-before', /^HTTP\/1\.1 503 .*Retry-After: 1\r\n.*sandbox_fault/is, 0],
  '429-before': ['429-before', /^HTTP\/1\.1 429 .*Retry-After: 1\r\n.*sandbox_fault/is, 0],
  status: ['status=418', /^HTTP\/1\.1 418 .*"success":false.*sandbox_fault/s, 0],
  '500-after': ['500-after', /^HTTP\/1\.1 500 .*sandbox_fault/s, 1],
  '503-after': ['503-after', /^HTTP\/1\.1 503 .*Retry-After: 1\r\n.*sandbox_fault/is, 1],
  huge: ['huge=20000', /^HTTP\/1\.1 201 .*content-length: 20000\r\n.*"amount":100/is, 1],
  binary: ['binary', /application\/octet-stream\r\n.*\r\n\r\n.{253}\xfd\xfe\xff$/s, 1],
  refuse: ['refuse', /^$/, 0, 'reset'],
  'reset-before-execute': ['reset-before-execute', /^$/, 0, 'reset'],
  hang: ['hang', /^$/, 0],
  'execute-then-reset': ['execute-then-reset', /^$/, 1, 'reset'],
  'execute-then-hang': ['execute-then-hang', /^$/, 1],
  truncate: ['truncate', /^(?=.*content-length: \d+\r\n).*\r\n\r\n\{"success":true[^}]*$/is, 1],
  'truncate-unframed': [
    'truncate-unframed',
    /^(?!.*(?:content-length|transfer-encoding)).*\r\n\r\n\{"success":true[^}]*$/is,
    1,
  ],
  'truncate-chunked': [
    'truncate-chunked',
    /^(?=.*transfer-encoding: chunked)(?!.*\r\n0\r\n).*\{"success":true/is,
    1,
  ],
  drip: ['drip=1', /^HTTP\/1\.1 201 .*\{"success":true.*\}/s, 1],
  garbage: ['garbage', /^(?!HTTP)./s, 1],
  gzip: ['gzip', /^HTTP\/1\.1 201 .*content-encoding: gzip\r\n/is, 1],
  'gzip-force': ['gzip-force', /^HTTP\/1\.1 201 .*content-encoding: gzip\r\n/is, 1],
  'set-cookie': ['set-cookie', /(?:\r\nset-cookie: .*){2}/is, 1],
  'duplicate-header': ['duplicate-header', /X-SaNdBoX-Note: first\r\nx-sAnDbOx-nOtE: second\r\n/, 1],
  'early-hints': ['early-hints', /^HTTP\/1\.1 103 Early Hints\r\n.*HTTP\/1\.1 201 Created/s, 1],
  once: ['503-before,once', /^HTTP\/1\.1 503 /, 0],
};

describe('a fault', () => {
  it.each(Object.values(CASES))(
    '%s does what its description says',
    async (fault, bytes, payouts, how = 'end') => {
      const sandbox = await openSandbox();
      const end = received(sandbox, fault);
      const hangs = fault.endsWith('hang');
      if (hangs) {
        await until(() => sandbox.requests.total() === 1 && sandbox.ledger.payouts() === payouts);
        // Once this later request is answered, the first has had time to be executed.
        expect((await ask(`${sandbox.url}/v2/get_balance`, { headers: ALPHA })).status).toBe(200);
      } else await end;
      expect(sandbox.ledger.payouts()).toBe(payouts);
      if (hangs) await sandbox.close();
      expect(await end).toEqual({ bytes: expect.stringMatching(bytes), how });
    },
  );

  it('waits, and pays also if the merchant disconnects meanwhile', async () => {
    const sandbox = await openSandbox();
    const key = { 'x-service-idempotency': 'delayed' };
    const left = await rawWithdraw(sandbox, [
      'x-service-idempotency: delayed',
      'X-Sandbox-Fault: delay=600000',
    ]);
    await until(() => sandbox.requests.ofKey('delayed') === 1);
    left.socket.destroy();
    sandbox.endDelays('another');
    expect((await withdraw(sandbox, 'status=404')).status).toBe(404);
    expect(sandbox.ledger.payouts()).toBe(0);
    sandbox.endDelays('delayed');
    await until(() => sandbox.ledger.payouts() === 1);
    expect((await withdraw(sandbox, 'delay=600000', key)).status).toBe(201);
  });

  it('refuses before the body has arrived', async () => {
    const sandbox = await openSandbox();
    const wire = await rawWithdraw(sandbox, ['X-Sandbox-Fault: refuse'], 0);
    expect([await wire.ended, wire.rest]).toEqual(['reset', '']);
    expect([sandbox.ledger.payouts(), sandbox.requests.total()]).toEqual([0, 1]);
  });

  it('compresses no answer for a client that does not take it', async () => {
    const sandbox = await openSandbox();
    for (const refused of ['identity', 'gzip;q=0', '']) {
      const plain = await withdraw(sandbox, 'gzip', { 'accept-encoding': refused });
      expect(plain.headers['content-encoding']).toBeUndefined();
    }
  });

  it('with once applies to the first request of each key, and to every request without a key', async () => {
    const sandbox = await openSandbox();
    const statuses: number[] = [];
    for (const key of ['a', 'a', 'b', 'b', undefined, undefined]) {
      const headers = key === undefined ? {} : { 'idempotency-key': key };
      statuses.push((await withdraw(sandbox, '503-before,once', headers)).status);
    }
    expect(statuses).toEqual([503, 201, 503, 201, 503, 503]);
  });

  it('is listed with its description', async () => {
    const { url } = await openSandbox();
    const listed: Record<string, string> = JSON.parse(String((await ask(`${url}/_sandbox/faults`)).body));
    expect(Object.keys(listed)).toEqual(Object.keys(FAULTS));
    expect(listed.delay).toMatch(/^delay=MS: /);
  });

  it('can be combined with others', async () => {
    const sandbox = await openSandbox();
    expect(await received(sandbox, 'delay=20, execute-then-reset')).toEqual({ bytes: '', how: 'reset' });
    const answer = await withdraw(sandbox, '500-after,huge=5000,set-cookie,gzip-force,drip=0');
    expect(answer.status).toBe(500);
    expect(gunzipSync(answer.body)).toHaveLength(5000);
    expect(sandbox.ledger.payouts()).toBe(2);
  });

  it('that is invalid is answered 400, and nothing is executed', async () => {
    const { url, ledger } = await openSandbox();
    const cases: [fault: string, message: RegExp][] = [
      ['explode', /unknown fault "explode"/],
      ['', /unknown fault ""/],
      ['toString', /unknown fault/],
      ['delay', /delay=MS/],
      ['delay=-1', /delay=MS/],
      ['delay=5=6', /delay=MS/],
      ['status=99', /status=NNN/],
      ['refuse=1', /takes no value/],
      ['hang,hang', /twice/],
      ['hang,truncate', /contradict/],
      ['500-before,500-after', /contradict/],
    ];
    for (const [fault, message] of cases) {
      const answer = await post(url, WITHDRAW, { ...ALPHA, 'x-sandbox-fault': fault });
      expect(answer.status, fault).toBe(400);
      expect(answer.json, fault).toMatchObject({
        success: false,
        error: { code: 'invalid_fault', message: expect.stringMatching(message) },
      });
    }
    expect(ledger.payouts()).toBe(0);
  });

  it('applies to the balance and to the echo too', async () => {
    const { url } = await openSandbox();
    for (const path of ['/v2/get_balance', '/v3/echo']) {
      const headers = { ...ALPHA, 'x-sandbox-fault': 'status=502' };
      expect((await ask(url + path, { headers })).status).toBe(502);
    }
  });
});

it('usualFaults act on requests that have a key and name no fault, and an unknown fault is refused', async () => {
  const sandbox = await openSandbox({ usualFaults: '500-after,once' });
  const headers = { ...ALPHA, 'x-service-idempotency': 'k-1' };
  const statuses: number[] = [];
  for (const more of [{}, {}, { 'x-sandbox-fault': '503-before' }])
    statuses.push((await post(sandbox.url, WITHDRAW, { ...headers, ...more })).status);
  statuses.push((await post(sandbox.url, WITHDRAW, ALPHA)).status);
  statuses.push((await ask(`${sandbox.url}/v2/get_balance`, { headers: ALPHA })).status);
  expect(statuses).toEqual([500, 201, 503, 201, 200]);
  await expect(openSandbox({ usualFaults: 'no-such-fault' })).rejects.toThrow('unknown fault');
});
