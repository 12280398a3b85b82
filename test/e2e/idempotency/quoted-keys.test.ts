import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { gatewayForTest, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, ask, request } from '../../support/wire.ts';

const lookup = {
  ...{
    path: '/transactions?merchant={merchant}&key={key}',
    completed: [200],
    completedStatus: 201,
    released: [404],
  },
  ...{ releaseAfterMs: 1500, firstAfterMs: 10, maxPauseMs: 50 },
};

/** Takes the header as it comes for the key. It cuts the connection of its first payout, and knows retries under `retry`. */
async function stackFor(inDoubt: 'hold' | 'lookup' | 'retry') {
  const paid: string[] = [];
  const url = await httpBackend((req, res) => {
    const { searchParams } = new URL(req.url ?? '', 'http://backend');
    if (req.method === 'GET')
      return void res.writeHead(paid.includes(searchParams.get('key') ?? '') ? 200 : 404).end('{}');
    const key = String(req.headers['idempotency-key']);
    if (inDoubt === 'retry' && paid.includes(key)) return void res.writeHead(201).end('{}');
    paid.push(key);
    if (paid.length === 1) return void req.socket.destroy();
    res.writeHead(201).end('{}');
  });
  const { port } = await stackForTest({
    upstream: { url, responseTimeoutMs: 500, connectTimeoutMs: 300 },
    lock: { leaseMs: 1000 },
    operations: [
      {
        name: 'pay',
        match: { method: 'POST', path: '/v1/pay' },
        idempotency: inDoubt === 'lookup' ? { inDoubt, lookup } : { inDoubt },
      },
    ],
  });
  const pay = (key: string) => ask(port, request('POST /v1/pay', [ALPHA, `Idempotency-Key: ${key}`], '{}'));
  return { paid, pay };
}

it.each(['lookup', 'retry'] as const)(
  'a quoted key is paid once under %s, although the backend takes quotes for a part of the key',
  async (inDoubt) => {
    const { paid, pay } = await stackFor(inDoubt);
    const key = randomUUID();
    expect((await pay(`"${key}"`)).status).toBe(502);
    const again = inDoubt === 'retry' ? key : `"${key}"`;
    await until(async () => (await pay(again)).status === 201);
    expect(paid).toEqual([key]);
  },
);

it('a quoted key with spaces at its ends is refused where the backend must recognise it', async () => {
  const { paid, pay } = await stackFor('retry');
  for (const key of ['" a"', '"a "', String.raw`"\"a"`])
    expect(JSON.parse(String((await pay(key)).body))).toMatchObject({
      error: { code: 'invalid_request', retry: 'never' },
    });
  expect(paid).toEqual([]);
});

it('a quoted key reaches the backend as it came under hold', async () => {
  const { paid, pay } = await stackFor('hold');
  await pay('"a"');
  await pay('" b"');
  expect(paid).toEqual(['"a"', '" b"']);
});

it('a quoted key that was observed is held, because a lookup would ask for it without its quotes', async () => {
  const [paid, asked]: string[][] = [[], []];
  const url = await httpBackend((req, res) => {
    if (req.method === 'GET') {
      asked?.push(new URL(req.url ?? '', 'http://backend').searchParams.get('key') ?? '');
      return void res.writeHead(200).end('{}');
    }
    paid?.push(String(req.headers['idempotency-key']));
    req.socket.destroy();
  });
  const match = { method: 'POST', path: '/v1/pay' };
  const observing = await stackForTest({
    upstream: { url, responseTimeoutMs: 500, connectTimeoutMs: 300 },
    lock: { leaseMs: 1000 },
    operations: [{ name: 'pay', match, idempotency: { inDoubt: 'lookup', lookup } }],
    idempotency: { mode: 'observe' },
  });
  const pay = async (port: number, key: string) =>
    (await ask(port, request('POST /v1/pay', [ALPHA, `Idempotency-Key: ${key}`], '{}'))).status;
  const [quoted, plain] = [`"${randomUUID()}"`, randomUUID()];
  for (const key of [quoted, plain]) expect(await pay(observing.port, key)).toBe(502);
  await until(async () => {
    const found = await observing.gateway.desk.list({ inDoubt: true, limit: 10 });
    return found.kind === 'found' && found.value.records.length === 2;
  });
  const protecting = await gatewayForTest({ ...observing.config, idempotency: { mode: 'protect' } });
  expect(await pay(protecting.port, quoted)).toBe(409);
  expect(await pay(protecting.port, plain)).toBe(201);
  expect(asked).toEqual([plain]);
  expect(paid).toEqual([quoted, plain]);
});
