import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { FAULTS, type FaultName } from '../../src/sandbox/faults.ts';
import type { Sandbox } from '../../src/sandbox/sandbox.ts';
import { until } from '../support/until.ts';
import {
  ALPHA,
  type Answer,
  ask,
  openSandbox,
  post,
  RawConnection,
  type RawEnd,
  rawWithdraw,
  WITHDRAW,
} from './support.ts';

async function withdraw(
  { url }: Sandbox,
  fault: string,
  headers: Record<string, string> = {},
): Promise<Answer> {
  return await post(url, WITHDRAW, { ...ALPHA, ...headers, 'x-sandbox-fault': fault });
}

async function rawEnd({ port }: Sandbox, fault: string): Promise<RawEnd> {
  return await new RawConnection(port, rawWithdraw({ 'X-Sandbox-Fault': fault })).ended;
}

async function expectStatus(
  sandbox: Sandbox,
  fault: string,
  status: number,
  payouts: number,
): Promise<Answer> {
  const answer = await withdraw(sandbox, fault);
  expect(answer.status).toBe(status);
  if (status >= 400) expect(answer.json).toMatchObject({ success: false, error: { code: 'sandbox_fault' } });
  expect(sandbox.ledger.payouts()).toBe(payouts);
  return answer;
}

/** Expects that no byte is answered. The answered balance shows that the request had enough time to be executed. */
async function expectNoAnswer(sandbox: Sandbox, fault: string, payouts: number): Promise<void> {
  const connection = new RawConnection(sandbox.port, rawWithdraw({ 'X-Sandbox-Fault': fault }));
  await until(() => sandbox.requests.total() === 1);
  await until(() => sandbox.ledger.payouts() === payouts);
  expect((await ask(`${sandbox.url}/v2/get_balance`, { headers: ALPHA })).status).toBe(200);
  expect(sandbox.ledger.payouts()).toBe(payouts);
  await sandbox.close();
  expect((await connection.ended).bytes).toBe('');
}

/** The check of each fault. TypeScript requires one for every fault. */
const CASES: Record<FaultName, (sandbox: Sandbox) => Promise<void>> = {
  delay: async (sandbox) => {
    const startedMs = performance.now();
    const headers = { 'X-Sandbox-Fault': 'delay=150', Connection: 'close' };
    const connection = new RawConnection(sandbox.port, rawWithdraw(headers));
    await until(() => sandbox.ledger.payouts() === 1);
    expect(performance.now() - startedMs).toBeGreaterThan(145);
    expect((await connection.ended).bytes).toMatch(/^HTTP\/1.1 201 /);
    // The merchant who disconnects meanwhile has paid.
    const key = { 'x-service-idempotency': 'delayed' };
    const left = new RawConnection(sandbox.port, rawWithdraw({ ...key, 'X-Sandbox-Fault': 'delay=600000' }));
    await until(() => sandbox.requests.ofKey('delayed') === 1);
    expect(sandbox.ledger.payouts()).toBe(1);
    left.socket.destroy();
    sandbox.endDelays('another');
    expect((await withdraw(sandbox, 'status=404')).status).toBe(404);
    expect(sandbox.ledger.payouts()).toBe(1);
    sandbox.endDelays('delayed');
    await until(() => sandbox.ledger.payouts() === 2);
    expect((await withdraw(sandbox, 'delay=600000', key)).status).toBe(201);
  },
  '500-before': async (sandbox) => void (await expectStatus(sandbox, '500-before', 500, 0)),
  '503-before': async (sandbox) => {
    expect((await expectStatus(sandbox, '503-before', 503, 0)).headers['retry-after']).toBe('1');
  },
  '429-before': async (sandbox) => {
    expect((await expectStatus(sandbox, '429-before', 429, 0)).headers['retry-after']).toBe('1');
  },
  status: async (sandbox) => {
    await expectStatus(sandbox, 'status=418', 418, 0);
    expect((await expectStatus(sandbox, 'status=202', 202, 0)).json).toMatchObject({ success: true });
    const empty = await expectStatus(sandbox, 'status=204', 204, 0);
    expect(empty.body).toHaveLength(0);
    expect(empty.headers['content-length']).toBeUndefined();
  },
  '500-after': async (sandbox) => void (await expectStatus(sandbox, '500-after', 500, 1)),
  '503-after': async (sandbox) => void (await expectStatus(sandbox, '503-after', 503, 1)),
  huge: async (sandbox) => {
    const answer = await expectStatus(sandbox, 'huge=2000000', 201, 1);
    expect(answer.body).toHaveLength(2_000_000);
    expect(answer.json.data.amount).toBe(100);
  },
  binary: async (sandbox) => {
    const answer = await withdraw(sandbox, 'binary');
    expect([...answer.body]).toEqual([...Array(256).keys()]);
    expect(answer.headers['content-type']).toBe('application/octet-stream');
    expect(sandbox.ledger.payouts()).toBe(1);
  },
  refuse: async (sandbox) => {
    const headersOnly = rawWithdraw(
      { 'X-Sandbox-Fault': 'refuse' },
      { cutBytes: JSON.stringify(WITHDRAW).length },
    );
    expect(await new RawConnection(sandbox.port, headersOnly).ended).toEqual({ bytes: '', how: 'reset' });
    expect(sandbox.ledger.payouts()).toBe(0);
    expect(sandbox.requests.total()).toBe(1);
  },
  'reset-before-execute': async (sandbox) => {
    expect(await rawEnd(sandbox, 'reset-before-execute')).toEqual({ bytes: '', how: 'reset' });
    expect(sandbox.ledger.payouts()).toBe(0);
  },
  hang: (sandbox) => expectNoAnswer(sandbox, 'hang', 0),
  'execute-then-reset': async (sandbox) => {
    expect(await rawEnd(sandbox, 'execute-then-reset')).toEqual({ bytes: '', how: 'reset' });
    expect(sandbox.ledger.payouts()).toBe(1);
  },
  'execute-then-hang': (sandbox) => expectNoAnswer(sandbox, 'execute-then-hang', 1),
  truncate: async (sandbox) => {
    const { bytes } = await rawEnd(sandbox, 'truncate');
    const [head = '', body = ''] = bytes.split('\r\n\r\n');
    const announced = Number(/content-length: (\d+)/i.exec(head)?.[1]);
    expect(body).toHaveLength(Math.floor(announced / 2));
    expect(body).toMatch(/^\{"success":true/);
    expect(sandbox.ledger.payouts()).toBe(1);
  },
  'truncate-unframed': async (sandbox) => {
    const { bytes, how } = await rawEnd(sandbox, 'truncate-unframed');
    expect(bytes).not.toMatch(/content-length|transfer-encoding/i);
    expect([bytes.split('\r\n\r\n')[1]?.slice(0, 10), how]).toEqual(['{"success"', 'fin']);
    expect(sandbox.ledger.payouts()).toBe(1);
  },
  'truncate-chunked': async (sandbox) => {
    const { bytes } = await rawEnd(sandbox, 'truncate-chunked');
    expect(bytes).toMatch(/transfer-encoding: chunked/i);
    expect(bytes).toContain('{"success":true');
    expect(bytes).not.toContain('\r\n0\r\n');
    expect(sandbox.ledger.payouts()).toBe(1);
  },
  drip: async (sandbox) => {
    const chunks = await chunksOf(sandbox, 'drip=3');
    expect(chunks.length).toBeGreaterThan(5);
    expect(JSON.parse(chunks.join(''))).toMatchObject({ success: true });
    expect(sandbox.ledger.payouts()).toBe(1);
  },
  garbage: async (sandbox) => {
    expect((await rawEnd(sandbox, 'garbage')).bytes).not.toMatch(/^HTTP/);
    await expect(withdraw(sandbox, 'garbage')).rejects.toThrow(/Parse Error/);
    expect(sandbox.ledger.payouts()).toBe(2);
  },
  gzip: async (sandbox) => {
    const answer = await withdraw(sandbox, 'gzip', { 'accept-encoding': 'br, gzip;q=0.5' });
    expect(answer.headers['content-encoding']).toBe('gzip');
    expect(JSON.parse(gunzipSync(answer.body).toString())).toMatchObject({ success: true });
    for (const refused of ['identity', 'gzip;q=0', '']) {
      const plain = await withdraw(sandbox, 'gzip', { 'accept-encoding': refused });
      expect(plain.headers['content-encoding']).toBeUndefined();
    }
  },
  'gzip-force': async (sandbox) => {
    const answer = await withdraw(sandbox, 'gzip-force', { 'accept-encoding': 'identity' });
    expect(JSON.parse(gunzipSync(answer.body).toString())).toMatchObject({ success: true });
  },
  'set-cookie': async (sandbox) => {
    expect((await withdraw(sandbox, 'set-cookie')).headers['set-cookie']).toHaveLength(2);
  },
  'duplicate-header': async (sandbox) => {
    const { rawHeaders } = await withdraw(sandbox, 'duplicate-header');
    const at = rawHeaders.indexOf('X-SaNdBoX-Note');
    expect(rawHeaders.slice(at, at + 4)).toEqual(['X-SaNdBoX-Note', 'first', 'x-sAnDbOx-nOtE', 'second']);
  },
  'early-hints': async (sandbox) => {
    const connection = new RawConnection(
      sandbox.port,
      rawWithdraw({ 'X-Sandbox-Fault': 'early-hints', Connection: 'close' }),
    );
    const { bytes } = await connection.ended;
    expect(bytes).toMatch(/^HTTP\/1\.1 103 Early Hints\r\n/);
    expect(bytes).toContain('HTTP/1.1 201 Created');
  },
  once: async (sandbox) => {
    for (const key of ['a', 'b']) {
      const headers = { 'idempotency-key': key };
      const first = await withdraw(sandbox, '503-before,once', headers);
      const second = await withdraw(sandbox, '503-before,once', headers);
      expect([first.status, second.status]).toEqual([503, 201]);
    }
    // A request without a key is never a repetition.
    for (const _ of ['first', 'second']) await expectStatus(sandbox, '503-before,once', 503, 2);
  },
};

async function chunksOf({ port }: Sandbox, fault: string): Promise<string[]> {
  const headers = { ...ALPHA, 'x-sandbox-fault': fault };
  const request = httpRequest({ port, path: '/v1/index.php', method: 'POST', headers, agent: false });
  request.end(JSON.stringify(WITHDRAW));
  const [response] = await once(request, 'response');
  const chunks: string[] = [];
  for await (const chunk of response) chunks.push(String(chunk));
  return chunks;
}

describe('a fault', () => {
  it.each(Object.entries(CASES))('named %s does what its description says', async (_, check) =>
    check(await openSandbox()),
  );

  it('is listed with its description', async () => {
    const { url } = await openSandbox();
    const listed: Record<string, string> = JSON.parse(String((await ask(`${url}/_sandbox/faults`)).body));
    expect(Object.keys(listed)).toEqual(Object.keys(FAULTS));
    expect(listed.delay).toMatch(/^delay=MS: /);
  });

  it('can be combined with others', async () => {
    const sandbox = await openSandbox();
    expect(await rawEnd(sandbox, 'delay=20, execute-then-reset')).toMatchObject({ how: 'reset' });
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

it('the usual faults are those of requests with a key that name none, and must be faults that there are', async () => {
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
