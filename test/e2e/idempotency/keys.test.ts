import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { payoutBody } from '../../support/payout.ts';
import { expectProblem } from '../../support/problem.ts';
import { stackForFile, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, ask, BRAVO, request, type WireAnswer } from '../../support/wire.ts';

const OURS = 'x-service-idempotency';
const DRAFT = 'Idempotency-Key';

const stack = await stackForFile();

interface Payout {
  who?: string;
  body?: object;
  port?: number;
}

/** A payout with exactly these header lines, one byte for each character. */
async function payAs({ who = ALPHA, body = payoutBody(), port = stack.port }: Payout, ...lines: string[]) {
  const bytes = request('POST /v1/index.php', [who, ...lines], JSON.stringify(body));
  return await ask(port, bytes);
}
const pay = (...lines: string[]) => payAs({}, ...lines);
const isReplay = ({ headers }: WireAnswer) => headers['idempotent-replayed']?.[0] === 'true';

it('every spelling of a key finds the payout', async () => {
  const spellings: [string, (key: string) => string[]][] = [
    ['in x-service-idempotency', (key) => [`${OURS}: ${key}`]],
    ['in X-SERVICE-IDEMPOTENCY', (key) => [`${OURS.toUpperCase()}: ${key}`]],
    ['with white space around it', (key) => [`${OURS}: \t ${key} \t`]],
    ['in Idempotency-Key, quoted', (key) => [`${DRAFT}: "${key.replace(/["\\]/g, '\\$&')}"`]],
    ['in idempotency-key, bare', (key) => [`idempotency-key: ${key}`]],
    ['the same in both', (key) => [`${OURS}: ${key}`, `${DRAFT}: ${key}`]],
  ];
  await eachRowInTurn(spellings, async ([, lines]) => {
    const key = `a "quoted" \\ key, ${randomUUID()}`;
    const before = stack.sandbox.ledger.payouts();
    const first = await pay(`${OURS}: ${key}`);
    expect([first.status, isReplay(first)]).toEqual([201, false]);
    const again = await pay(...lines(key));
    expect([again.status, isReplay(again)]).toEqual([201, true]);
    expect(again.body).toEqual(first.body);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  });
});

it('keys that differ in case, in spaces or in quotes are different keys', async () => {
  const before = stack.sandbox.ledger.payouts();
  const keys = ['Order-7', 'order-7', '"order-7"', 'order 7', 'order  7', 'order,7'];
  for (const key of keys) {
    const answer = await pay(`${OURS}: ${key}`);
    expect([answer.status, isReplay(answer)]).toEqual([201, false]);
  }
  expect(stack.sandbox.ledger.payouts()).toBe(before + keys.length);
});

it('an invalid key is refused, and the answer does not repeat it', async () => {
  const invalid: [string, string[]][] = [
    ['empty, of white space', [`${OURS}:  \t `]],
    ['of 256 characters', [`${OURS}: ${'x'.repeat(256)}`]],
    ['not ASCII', [`${OURS}: order-clé`]],
    // Node trims these.
    ['with a no-break space before it', [`${OURS}: \u00a0order-7`]],
    ['with a no-break space behind it', [`${OURS}: order-7\u00a0`]],
    ['sent twice', [`${OURS}: order-7`, `${OURS}: order-8`]],
    ['sent twice, the same, in another case', [`${OURS}: order-7`, `${OURS.toUpperCase()}: order-7`]],
    ['empty, in the header that decides', [`${DRAFT}: "order-7"`, `${OURS}:`]],
  ];
  const received = stack.sandbox.requests.total();
  await eachRowInTurn(invalid, async ([, lines]) => {
    const answer = await pay(...lines);
    expectProblem(answer, { status: 400, code: 'idempotency_key_invalid' });
    expect(answer.body.toString()).not.toContain('order-');
  });
  // Control characters are not even HTTP.
  for (const character of ['\x00', '\x01', '\x7f'])
    expectProblem(await pay(`${OURS}: order${character}7`), { status: 400, code: 'invalid_request' });
  expect(stack.sandbox.requests.total()).toBe(received);
});

it('the first configured header that is present decides, and another one is forwarded untouched and named in the log', async () => {
  const others = ['"order-8"', 'order 8', '"never closed', '', 'order-8|order-9'];
  const received: NodeJS.Dict<string[]>[] = [];
  const backend = await httpBackend((req, res) => {
    received.push(req.headersDistinct);
    res.writeHead(201).end('ok');
  });
  const { port, log } = await stackForTest({ upstream: { url: backend } });
  const payWith = (key: string, other: string) =>
    payAs({ port }, ...other.split('|').map((value) => `${DRAFT}: ${value}`), `${OURS}: ${key}`);
  for (const other of others) {
    const key = randomUUID();
    expect((await payWith(key, other)).status).toBe(201);
    // A browser makes a new one for each attempt.
    expect(isReplay(await payWith(key, randomUUID()))).toBe(true);
    expect(received.at(-1)).toMatchObject({ 'idempotency-key': other.split('|'), [OURS]: [key] });
  }
  expect(received).toHaveLength(others.length);
  const named = () => log.filter(({ ignoredKeyHeaders }) => ignoredKeyHeaders === 'idempotency-key');
  // The line of a request is written after its answer.
  await until(() => named().length === 2 * others.length);
});

it('a key in doubt is not sent again with another key beside it, which the backend may read', async () => {
  const match = { method: 'POST', path: '/v1/index.php' };
  const retrying = await stackForTest({
    operations: [{ name: 'pay', match, idempotency: { inDoubt: 'retry' } }],
  });
  const key = randomUUID();
  const attempt = (...more: string[]) => payAs({ port: retrying.port }, `${OURS}: ${key}`, ...more);
  expect((await attempt('X-Sandbox-Fault: refuse')).status).toBe(502);
  expectProblem(await attempt(`${DRAFT}: other`), { status: 409, code: 'outcome_unknown' });
  expect(retrying.sandbox.requests.ofKey(key)).toBe(1);
  expect((await attempt()).status).toBe(201);
});

const idIn = ({ body }: { body: Buffer }): string => JSON.parse(`${body}`).data.transaction_id;

it('a key belongs to its merchant: two merchants, two payouts, and no data of one in the other’s answer', async () => {
  const key = randomUUID();
  const alpha = await pay(`${OURS}: ${key}`);
  // Another amount: under the same record id this would be a 422.
  const bravo = await payAs({ who: BRAVO, body: payoutBody(77) }, `${OURS}: ${key}`);
  expect([alpha.status, bravo.status, isReplay(bravo)]).toEqual([201, 201, false]);
  expect(bravo.body.toString()).not.toContain(idIn(alpha));
  for (const [merchant, who, first, amount] of [
    ['M-ALPHA', ALPHA, alpha, 10],
    ['M-BRAVO', BRAVO, bravo, 77],
  ] as const) {
    const again = await payAs({ who, body: payoutBody(amount) }, `${OURS}: ${key}`);
    expect([isReplay(again), again.body]).toEqual([true, first.body]);
    const ids = stack.sandbox.ledger.transactions({ key, merchant }).map(({ id }) => id);
    expect(ids).toEqual([idIn(first)]);
  }
});

it('a key outlives the secret key: after a rotation the old payout is found', async () => {
  const key = randomUUID();
  const old = await pay(`${OURS}: ${key}`);
  const rotated = await payAs({ who: 'Authorization: Bearer sk_sandbox_alpha_2' }, `${OURS}: ${key}`);
  expect([rotated.status, isReplay(rotated), rotated.body]).toEqual([201, true, old.body]);
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
});
