import { describe, expect, test } from 'vitest';
import type { OperationIdempotency } from '../../src/kernel/context.ts';
import { type DeclaredOperation, Operations, otherOperation } from '../../src/operations/operations.ts';

const idempotency: OperationIdempotency = {
  ...{ key: 'optional', inDoubt: 'hold', waitMs: 0 },
  ...{ release: [], unknown: [] },
};

function action(name: string, unreadableBody: 'refuse' | 'pass' = 'refuse'): DeclaredOperation {
  const match = { method: 'POST', path: '/v1/index.php', body: { action: name }, unreadableBody };
  return { name, match, idempotency };
}

const withdraw = action('withdraw');
const checkout = action('checkout');
const balance: DeclaredOperation = {
  name: 'balance',
  match: { method: 'GET', path: '/v2/get_balance', unreadableBody: 'refuse' },
  idempotency,
};
const operations = new Operations([balance, withdraw, checkout]);
const byBody = (body: string, candidates = [withdraw, checkout]) =>
  operations.byBody(candidates, Buffer.from(body));
const other = { kind: 'operation', operation: otherOperation };

describe('by the head', () => {
  test('a route of one operation is that operation, whatever its query', () => {
    expect(operations.byHead('GET', '/v2/get_balance')).toEqual({ kind: 'operation', operation: balance });
    expect(operations.byHead('GET', '/v2/get_balance?action=withdraw')).toEqual({
      kind: 'operation',
      operation: balance,
    });
  });

  test('a route that the body divides has all its operations as candidates', () => {
    expect(operations.byHead('POST', '/v1/index.php')).toEqual({
      kind: 'by_body',
      candidates: [withdraw, checkout],
    });
  });

  test('another path is nobody’s', () => {
    expect(operations.byHead('GET', '/v3/echo')).toEqual({ kind: 'none' });
    expect(operations.byHead('GET', '/')).toEqual({ kind: 'none' });
  });
});

describe('by the body', () => {
  test('the member selects the operation, in whatever place and spelling of JSON', () => {
    for (const body of [
      '{"action":"withdraw"}',
      '{"amount":1,"to":{"action":"checkout"},"action":"withdraw"}',
      '{"\\u0061ction":"\\u0077ithdraw"}',
    ]) {
      expect(byBody(body)).toEqual({ kind: 'operation', operation: withdraw });
    }
    expect(byBody('{"action":"checkout"}')).toEqual({ kind: 'operation', operation: checkout });
  });

  test.each([
    '{}',
    '{"action":"refund"}',
    '{"action":""}',
    '{"action":"withdrawal"}',
    '{"actions":"withdraw"}',
    '{"data":{"action":"withdraw"}}',
    '{"__proto__":{"action":"withdraw"}}',
  ])('%s is the operation `other`, which takes no key', (body) => {
    expect(byBody(body)).toEqual(other);
    expect(otherOperation.idempotency.key).toBe('none');
  });

  test.each([
    ['{"action":true}'],
    ['{"action":0}'],
    ['{"action":1}'],
    ['{"action":null}'],
    ['{"action":[]}'],
    ['{"action":["withdraw"]}'],
    ['{"action":{"0":"withdraw"}}'],
    ['{"action":" withdraw"}'],
    ['{"action":"withdraw\\n"}'],
    ['{"action":"withdraw\\u0000"}'],
    ['{"action":"withdraw\\u0000x"}'],
    ['{"action":"withdraw \\u0000x"}'],
    ['{"action":"\\u0000withdraw"}'],
    ['{"action":"\\u00a0withdraw"}'],
    ['{"action":"WITHDRAW"}'],
    ['{"action":"Withdraw "}'],
    ['{"action":"CHECKOUT"}'],
    ['{"Action":"withdraw"}'],
    ['{"ACTION":"refund"}'],
    ['{" action":"withdraw"}'],
    ['{"action\\t":"withdraw"}'],
    // A parser in C ends the name here.
    ['{"action\\u0000":"withdraw"}'],
    ['{"action\\u0000x":"withdraw"}'],
    ['{"action":"refund","Action":"withdraw"}'],
    ['{"action":"refund","action ":"withdraw"}'],
    ['{"action":"withdraw","action":"refund"}'],
    ['{"action":"withdraw"'],
    ['["withdraw"]'],
    ['action=withdraw'],
    [''],
  ])('%s is ambiguous', (body) => {
    expect(byBody(body)).toHaveProperty('kind', 'ambiguous');
  });

  test('why it is ambiguous holds nothing of what was sent', () => {
    const { reason } = byBody('{"Action":"0123456789"}') as { reason: string };
    expect(reason).not.toContain('0123456789');
  });
});

describe('a route that takes uploads too', () => {
  const candidates = [action('withdraw', 'pass'), checkout];

  test.each(['', 'not json', '[1]', '--x\r\n\r\nwithdraw\r\n--x--'])('passes %j on as nobody’s', (body) => {
    expect(byBody(body, candidates)).toEqual(other);
  });

  test('still tells its operations, and refuses what nearly is one', () => {
    expect(byBody('{"action":"withdraw"}', candidates)).toHaveProperty('operation.name', 'withdraw');
    expect(byBody('{"action":"WITHDRAW"}', candidates)).toHaveProperty('kind', 'ambiguous');
    expect(byBody('{"Action":"withdraw"}', candidates)).toHaveProperty('kind', 'ambiguous');
  });
});
