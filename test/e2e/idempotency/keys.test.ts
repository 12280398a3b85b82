import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { expectProblem } from '../../support/problem.ts';
import { payoutBytes, type RawAnswer, rawExchange } from '../../support/raw.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn } from '../../support/stores.ts';

const OURS = 'x-service-idempotency';
const DRAFT = 'Idempotency-Key';

let stack: Stack;
beforeAll(async () => {
  stack = await openStackOn('sqlite');
});
afterAll(() => stack?.close());

/** A payout with exactly these header lines, one byte for each character. */
async function pay(...lines: string[]): Promise<RawAnswer> {
  const [answer] = await rawExchange(stack.port, payoutBytes({ lines }));
  return answer ?? expect.fail('no answer');
}

describe('all spellings of one key', () => {
  it.each<[string, (key: string) => string[]]>([
    ['in x-service-idempotency', (key) => [`${OURS}: ${key}`]],
    ['in X-SERVICE-IDEMPOTENCY', (key) => [`${OURS.toUpperCase()}: ${key}`]],
    ['with white space around it', (key) => [`${OURS}: \t ${key} \t`]],
    ['in Idempotency-Key, quoted', (key) => [`${DRAFT}: "${key}"`]],
    ['in Idempotency-Key, bare', (key) => [`${DRAFT}: ${key}`]],
    ['in idempotency-key', (key) => [`idempotency-key: "${key}"`]],
    ['the same in both', (key) => [`${OURS}: ${key}`, `${DRAFT}: ${key}`]],
    ['the same in both, quoted in one', (key) => [`${DRAFT}: "${key}"`, `${OURS}: ${key}`]],
  ])('%s finds the payout', async (_, lines) => {
    const key = randomUUID();
    const before = stack.sandbox.ledger.payouts();
    const first = await pay(`${OURS}: ${key}`);
    expect([first.status, first.headers['idempotent-replayed']]).toEqual([201, undefined]);
    const again = await pay(...lines(key));
    expect([again.status, again.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(again.body).toEqual(first.body);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  });

  it('escapes of a quoted string are read', async () => {
    const key = `a "quoted" \\ key ${randomUUID()}`;
    const before = stack.sandbox.ledger.payouts();
    const first = await pay(`${OURS}: ${key}`);
    const again = await pay(`${DRAFT}: "${key.replace(/["\\]/g, '\\$&')}"`);
    expect([again.status, again.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(again.body).toEqual(first.body);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  });

  it('quotes are part of a key in x-service-idempotency', async () => {
    const key = randomUUID();
    const before = stack.sandbox.ledger.payouts();
    await pay(`${OURS}: "${key}"`);
    const bare = await pay(`${OURS}: ${key}`);
    expect([bare.status, bare.headers['idempotent-replayed']]).toEqual([201, undefined]);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 2);
  });

  it.each([
    ['case', 'Order-7', 'order-7'],
    ['a space within', 'order 7', 'order  7'],
    ['a comma', 'order,7', 'order, 7'],
  ])('%s is another key', async (_, one, other) => {
    const prefix = randomUUID();
    const before = stack.sandbox.ledger.payouts();
    for (const key of [one, other]) {
      const answer = await pay(`${OURS}: ${prefix}${key}`);
      expect([answer.status, answer.headers['idempotent-replayed']]).toEqual([201, undefined]);
    }
    expect(stack.sandbox.ledger.payouts()).toBe(before + 2);
  });
});

describe('a key of printable characters', () => {
  const printable = String.fromCharCode(...Array.from({ length: 95 }, (_, at) => 32 + at));

  it.each([
    ['1 character', '7'],
    ['all 95 characters', `k${printable}k`],
    ['255 characters', 'x'.repeat(255)],
  ])('of %s is accepted', async (_, key) => {
    const before = stack.sandbox.ledger.payouts();
    const first = await pay(`${OURS}: ${key}`);
    const again = await pay(`${OURS}: ${key}`);
    expect([first.status, again.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(again.body).toEqual(first.body);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  });

  it('of 255 characters is accepted in quotes', async () => {
    const key = randomUUID().padEnd(255, '"');
    const before = stack.sandbox.ledger.payouts();
    expect((await pay(`${DRAFT}: "${key.replace(/"/g, '\\"')}"`)).status).toBe(201);
    const again = await pay(`${OURS}: ${key}`);
    expect(again.headers['idempotent-replayed']).toBe('true');
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  });
});

describe('an invalid key is refused', () => {
  let received: number;
  beforeEach(() => {
    received = stack.sandbox.requests.total();
  });

  it.each<[string, string[]]>([
    ['empty', [`${OURS}:`]],
    ['empty, of white space', [`${OURS}:  \t `]],
    ['empty in Idempotency-Key', [`${DRAFT}:`]],
    ['empty, quoted', [`${DRAFT}: ""`]],
    ['of 256 characters', [`${OURS}: ${'x'.repeat(256)}`]],
    ['of 256 characters, quoted', [`${DRAFT}: "${'x'.repeat(256)}"`]],
    ['not ASCII', [`${OURS}: clé-7`]],
    ['not ASCII, in UTF-8', [`${OURS}: cl\u00c3\u00a9-7`]],
    ['with a no-break space before it', [`${OURS}: \u00a0order-7`]],
    ['with a no-break space behind it', [`${OURS}: order-7\u00a0`]],
    ['a no-break space', [`${OURS}: \u00a0`]],
    ['not ASCII, quoted', [`${DRAFT}: "clé-7"`]],
    ['with a tab', [`${OURS}: order\t7`]],
    ['quoted and never closed', [`${DRAFT}: "order-7`]],
    ['quoted with a quote within', [`${DRAFT}: "order"7"`]],
    ['quoted with an unknown escape', [`${DRAFT}: "order\\7"`]],
    ['quoted with something behind it', [`${DRAFT}: "order-7" x`]],
    ['sent twice', [`${OURS}: order-7`, `${OURS}: order-8`]],
    ['sent twice, the same', [`${OURS}: order-7`, `${OURS}: order-7`]],
    ['sent twice in another case', [`${OURS}: order-7`, `${OURS.toUpperCase()}: order-7`]],
    ['sent twice in Idempotency-Key', [`${DRAFT}: "order-7"`, `${DRAFT}: "order-7"`]],
    ['contradicted by the other header', [`${OURS}: order-7`, `${DRAFT}: "order-8"`]],
    ['contradicted by an empty one', [`${OURS}: order-7`, `${DRAFT}:`]],
    ['contradicted in case', [`${OURS}: order-7`, `${DRAFT}: Order-7`]],
  ])('%s', async (_, lines) => {
    expectProblem(await pay(...lines), { status: 400, code: 'idempotency_key_invalid' });
    expect(stack.sandbox.requests.total()).toBe(received);
  });

  it.each([
    ['NUL', '\x00'],
    ['a control character', '\x01'],
    ['DEL', '\x7f'],
  ])('with %s: the request is not valid HTTP', async (_, character) => {
    expectProblem(await pay(`${OURS}: order${character}7`), { status: 400, code: 'invalid_request' });
    expect(stack.sandbox.requests.total()).toBe(received);
  });

  it('and the answer does not repeat it', async () => {
    const answer = await pay(`${OURS}: order-7-é`);
    expect(answer.body.toString()).not.toContain('order-7');
  });
});
