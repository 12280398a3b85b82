import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { incoming } from '../support/incoming.ts';
import {
  action,
  balance,
  declare,
  exampleOperations,
  expectIdentity,
  FORM,
  INDEX,
  identify,
  nameOf,
  operationsOf,
  type RequestShape,
} from '../support/operations.ts';

describe('an operation is matched by method and path', () => {
  test('if it has no where, with any query', () => {
    for (const url of ['/v2/get_balance', '/v2/get_balance?action=withdraw'])
      expectIdentity(exampleOperations, { method: 'GET', url }, 'balance', {
        ...{ isDeclared: true, isProtected: false, keyRequired: false },
        ...{ scopes: ['balance'], route: '/v2/get_balance' },
      });
  });

  test('with each of several methods', () => {
    const operations = operationsOf([declare('pay', { method: ['POST', 'PUT'], path: '/v1/pay' })]);
    const names = ['POST', 'PUT', 'PATCH', 'DELETE', 'GET'].map((method) =>
      nameOf(operations, { method, url: '/v1/pay' }),
    );
    expect(names).toEqual(['pay', 'pay', 'other', 'other', 'other']);
  });

  test('with a pattern, in its exact letter case', () => {
    const operations = operationsOf([declare('refund', { method: 'POST', path: '/v1/payments/:id/refund' })]);
    const urls = [
      ...['/v1/payments/p-1/refund', '/v1/payments/%41/refund?x', '/v1/payments//refund'],
      ...['/v1/payments/refund', '/v1/payments/a/b/refund', '/v1/payments/p-1/refund/x'],
    ];
    expect(urls.map((url) => nameOf(operations, { url }))).toEqual([
      ...['refund', 'refund', 'undeclared', 'undeclared', 'undeclared', 'undeclared'],
    ]);
    expect(identify(operations, { url: '/v1/payments/p-1/refund' })).toMatchObject({
      ...{ isDeclared: true, isProtected: true, route: '/v1/payments/:id/refund', scopes: ['refund'] },
    });
  });

  test('with a path in which pattern characters are escaped', () => {
    const operations = operationsOf([declare('pay', { method: 'POST', path: '/v1/\\:pay' })]);
    expect(nameOf(operations, { url: '/v1/:pay' })).toBe('pay');
    expect(nameOf(operations, { url: '/v1/x' })).toBe('undeclared');
  });

  test('otherwise the request is `undeclared`', () => {
    for (const url of ['/', '/v3/echo', '/v1/index.phpx'])
      expectIdentity(exampleOperations, { url }, 'undeclared', {
        ...{ isDeclared: false, isProtected: true, keyRequired: false, scopes: ['undeclared'] },
      });
  });
});

describe('an operation is matched by the members of where', () => {
  test.each<[string, RequestShape]>([
    ['in JSON', { body: '{"action":"withdraw"}' }],
    [
      'in JSON, written with escapes and after a nested object with the same member',
      { body: '{"to":{"action":"checkout"},"\\u0061ction":"\\u0077ithdraw"}' },
    ],
    ['in JSON with a text type', { type: 'text/plain', body: '{"action":"withdraw"}' }],
    ['in a form', { type: FORM, body: 'amount=10&action=withdraw' }],
    ['in a form, percent-encoded', { type: `${FORM}; charset=UTF-8`, body: '%61ction=%77ithdraw' }],
    ['in the query', { url: `${INDEX}?x=1&action=withdraw` }],
    [
      'in the query, with a body that does not have it',
      { url: `${INDEX}?action=withdraw`, body: '{"amount":10}' },
    ],
  ])('%s', (_where, shape) => {
    expectIdentity(exampleOperations, shape, 'withdraw', {
      ...{ isDeclared: true, isProtected: true, scopes: ['withdraw'], route: INDEX },
    });
    expect(identify(exampleOperations, shape).unclear).toBeUndefined();
  });

  test('all of them, from the body and the query together', () => {
    const where = { action: 'transfer', kind: 'payout' };
    const operations = operationsOf([declare('payout', { method: 'POST', path: INDEX, where })]);
    const cases: [string, RequestShape][] = [
      ['payout', { body: '{"kind":"payout","action":"transfer"}' }],
      ['payout', { url: `${INDEX}?kind=payout`, body: '{"action":"transfer"}' }],
      ['payout', { type: FORM, body: 'kind=payout&action=transfer' }],
      ['other', { body: '{"action":"transfer"}' }],
      ['other', { body: '{"action":"transfer","kind":"refund"}' }],
      ['other', { body: '{"action":"refund","kind":"payout"}' }],
    ];
    for (const [name, shape] of cases) {
      expect(nameOf(operations, shape), JSON.stringify(shape)).toBe(name);
      expect(identify(operations, shape).unclear).toBeUndefined();
    }
    const uncertain = identify(operations, { body: '{"action":"transfer","Kind":"payout"}' });
    expect(uncertain.unclear).toContain('payout');
    // One member that clearly differs is enough.
    expect(identify(operations, { body: '{"action":"refund","Kind":"payout"}' }).unclear).toBeUndefined();
  });

  test('the first match wins, and an operation without where takes the rest', () => {
    const rest = declare('rest', { method: 'POST', path: INDEX });
    const operations = operationsOf([action('withdraw'), rest]);
    expect(nameOf(operations, { body: '{"action":"withdraw"}' })).toBe('withdraw');
    expect(nameOf(operations, { body: '{"action":"refund"}' })).toBe('rest');
    expect(nameOf(operations, {})).toBe('rest');
    // It may be a withdrawal, so it is not `rest`.
    const uncertain = { body: '{"Action":"withdraw"}' };
    expectIdentity(operations, uncertain, 'other', { unclear: expect.stringContaining('withdraw') });
    const patternFirst = operationsOf([
      declare('any', { method: 'POST', path: '/v1/:script', where: { action: 'withdraw' } }),
      action('withdraw'),
    ]);
    expect(nameOf(patternFirst, { body: '{"action":"withdraw"}' })).toBe('any');
    const literalFirst = operationsOf([
      action('withdraw'),
      declare('any', { method: 'POST', path: '/v1/:script' }),
    ]);
    expect(nameOf(literalFirst, { body: '{"action":"withdraw"}' })).toBe('withdraw');
    expect(nameOf(literalFirst, { body: '{}' })).toBe('any');
  });

  test.each([
    '{}',
    '{"action":"withdrawal"}',
    '{"data":{"action":"withdraw"}}',
    '{"__proto__":{"action":"withdraw"}}',
  ])('%s: none matches, so it is the protected operation `other`', (body) => {
    const identity = identify(exampleOperations, { body });
    expect(identity).toMatchObject({
      operation: { name: 'other' },
      ...{ isDeclared: false, isProtected: true, keyRequired: false, scopes: ['other'], route: INDEX },
    });
    expect(identity.unclear).toBeUndefined();
  });
});

describe('the body is read', () => {
  const reads = (method: string, url: string, operations = exampleOperations) =>
    operations.matchHead(incoming(method, url)).readsBody;

  test('only if the operation depends on it', () => {
    expect(reads('POST', INDEX)).toBe(true);
    expect(reads('GET', INDEX)).toBe(true);
    expect(reads('GET', '/V1/index.php')).toBe(true);
    expect(reads('PUT', INDEX)).toBe(false);
    expect(reads('POST', '/V1/index.php')).toBe(false);
    const update = operationsOf([declare('update', { method: 'PUT', path: INDEX }), action('withdraw')]);
    expect(reads('PUT', INDEX, update)).toBe(true);
    expect(reads('GET', '/v2/get_balance')).toBe(false);
    expect(reads('POST', '/v3/echo')).toBe(false);
    const { readsBody } = exampleOperations.matchHead(incoming('POST', INDEX, { 'X-HTTP-Method': 'GET' }));
    expect(readsBody).toBe(false);
  });
});

test('no request makes identification throw', () => {
  const patterns = operationsOf([
    balance,
    action('withdraw'),
    declare('refund', { method: 'POST', path: '/v1/:id/refund' }),
  ]);
  const method = fc.constantFrom('GET', 'POST', 'PUT');
  const url = fc.oneof(
    ...[fc.string({ unit: 'binary' }), fc.webPath(), fc.constantFrom(INDEX, '/v1/x/refund')],
    fc.string().map((query) => `${INDEX}?${query}`),
  );
  const type = fc.constantFrom('application/json', FORM, 'text/plain', 'x', '');
  const body = fc.oneof(
    fc.uint8Array().map((bytes) => Buffer.from(bytes)),
    fc.string(),
  );
  const requests = fc.record({ method, url, type, body });
  fc.assert(
    fc.property(requests, (request) => void identify(patterns, request)),
    { numRuns: 300 },
  );
});
