import { describe, expect, test } from 'vitest';
import {
  action,
  balance,
  declare,
  exampleOperations,
  FORM,
  INDEX,
  identify,
  nameOf,
  operationsOf,
  type RequestShape,
} from '../support/operations.ts';

describe('a request is unclear if two readers could take it for different operations', () => {
  test.each<[string, RequestShape]>([
    ...[
      ...['{"action":true}', '{"action":0}', '{"action":1}', '{"action":null}', '{"action":[]}'],
      ...['{"action":["withdraw"]}', '{"action":{"0":"withdraw"}}', '{"action":" withdraw"}'],
      ...['{"action":"withdraw\\n"}', '{"action":"withdraw\\u0000"}', '{"action":"withdraw\\u0000x"}'],
      ...['{"action":"withdraw \\u0000x"}', '{"action":"\\u0000withdraw"}', '{"action":"\\u00a0withdraw"}'],
      ...['{"action":"WITHDRAW"}', '{"action":"Withdraw "}', '{"action":"CHECKOUT"}'],
      ...[
        '{"Action":"withdraw"}',
        '{"ACTION":"refund"}',
        '{" action":"withdraw"}',
        '{"action\\t":"withdraw"}',
      ],
      // A parser in C ends the name at the NUL.
      ...['{"action\\u0000":"withdraw"}', '{"action\\u0000x":"withdraw"}'],
      ...['{"action":"refund","Action":"withdraw"}', '{"action":"refund","action ":"withdraw"}'],
      ...[
        '{"action":"withdraw","action":"refund"}',
        '{"action":"withdraw"',
        '["withdraw"]',
        'action=withdraw',
      ],
    ].map((body): [string, RequestShape] => [body, { body }]),
    [
      'the selecting member in the query and in JSON',
      { url: `${INDEX}?action=checkout`, body: '{"action":"checkout"}' },
    ],
    [
      'the selecting member in the query and in a form',
      { url: `${INDEX}?action=a`, type: FORM, body: 'action=withdraw' },
    ],
    ['the selecting member twice in the query', { url: `${INDEX}?action=withdraw&action=withdraw` }],
    ['a body that is too large to be read', { body: undefined }],
    ['a header that overrides the method', { fields: { 'X-HTTP-Method-Override': 'PUT' }, body: '{}' }],
    [
      'a header that overrides the path',
      { fields: { 'X-Original-URL': '/' }, body: '{"action":"checkout"}' },
    ],
  ])('%s', (_name, shape) => {
    expect(identify(exampleOperations, shape)).toMatchObject({
      operation: { name: 'other' },
      unclear: expect.stringMatching(/\w/),
      ...{ isDeclared: false, isProtected: true, keyRequired: false },
    });
  });

  test('the reason quotes nothing of the request', () => {
    const { unclear } = identify(exampleOperations, { body: '{"Action":"0123456789"}' });
    expect(unclear).not.toContain('0123456789');
  });

  test.each([
    ...['X-HTTP-Method-Override', 'X-HTTP-Method', 'X-Method-Override', 'X-Original-URL', 'X-Rewrite-URL'],
  ])('a header %s makes it unclear, on every path and under every method', (name) => {
    for (const url of ['/v3/echo', '/v2/get_balance', '/V1/index.php'])
      for (const method of ['POST', 'GET', 'HEAD'])
        expect(identify(exampleOperations, { method, url, fields: { [name]: '' } }), url).toMatchObject({
          operation: { name: 'other' },
          unclear: expect.stringContaining('header'),
          isProtected: true,
        });
  });

  test('a method in the query makes it unclear where the method decides', () => {
    const operations = operationsOf([
      declare('create', { method: 'POST', path: '/v1/payments' }),
      declare('cancel', { method: 'DELETE', path: '/v1/payments' }, 'required'),
    ]);
    for (const query of ['_method=DELETE', 'a=1&%5fmethod=delete', '+_METHOD=DELETE', 'a;_method=DELETE'])
      expect(identify(operations, { url: `/v1/payments?${query}` }), query).toMatchObject({
        operation: { name: 'other' },
        unclear: expect.stringContaining('method'),
        ...{ isProtected: true, keyRequired: true },
      });
    expect(nameOf(operations, { url: '/v1/payments?method=DELETE' })).toBe('create');
    expect(nameOf(operations, { url: '/v1/payments?_method=PUT', method: 'GET' })).toBe('other');
    expect(nameOf(exampleOperations, { url: '/v2/get_balance?_method=PUT', method: 'GET' })).toBe('balance');
  });

  test('it requires a key if an operation on its path requires one', () => {
    const operations = operationsOf([action('withdraw'), action('checkout', 'required')]);
    expect(identify(operations, { body: '{"Action":"withdraw"}' }).keyRequired).toBe(true);
    expect(identify(operations, { fields: { 'X-HTTP-Method': 'GET' } }).keyRequired).toBe(true);
    // These are clearly not a checkout.
    expect(identify(operations, { body: '{"action":"withdraw"}' }).keyRequired).toBe(false);
    expect(identify(operations, { body: '{"action":"refund"}' }).keyRequired).toBe(false);
  });
});

describe('a request that only resembles a declared one', () => {
  test.each(['PUT', 'PATCH', 'DELETE', 'PROPFIND'])(
    '%s on a declared path: it is `other` and needs the scopes of that path',
    (method) => {
      expect(identify(exampleOperations, { method, body: '{"action":"withdraw"}' })).toMatchObject({
        operation: { name: 'other' },
        ...{ isDeclared: false, isProtected: true, scopes: ['withdraw', 'checkout'] },
      });
    },
  );

  test.each([
    '/V1/index.php',
    '/v1/index.php/',
    '/v1/index.php;x',
    '/v1/index.php/withdraw',
    '/v1/%69ndex.php',
  ])('%s: it is `other` and needs the scopes of the path that it resembles', (url) => {
    for (const method of ['POST', 'PUT', 'DELETE', 'GET', 'HEAD', 'OPTIONS'])
      expect(identify(exampleOperations, { method, url })).toMatchObject({
        operation: { name: 'other' },
        ...{ isDeclared: false, isProtected: method[0] === 'P' || method === 'DELETE' },
        scopes: ['withdraw', 'checkout'],
      });
  });

  test.each([
    '/V1/payments/p-1/refund',
    '/v1/payments/p-1/refund/',
    '/v1/payments/p-1/Refund;x',
    '/v1/p%61yments/1/refund',
  ])('%s: it resembles a declared pattern', (url) => {
    const operations = operationsOf([declare('refund', { method: 'POST', path: '/v1/payments/:id/refund' })]);
    expect(identify(operations, { url })).toMatchObject({ operation: { name: 'other' }, scopes: ['refund'] });
  });

  test('HEAD on a path declared for GET: it is `other`', () => {
    expect(identify(exampleOperations, { method: 'HEAD', url: '/v2/get_balance' })).toMatchObject({
      operation: { name: 'other' },
      ...{ isDeclared: false, isProtected: false, scopes: ['balance'] },
    });
    const both = operationsOf([declare('balance', { method: ['GET', 'HEAD'], path: '/v2/get_balance' })]);
    expect(nameOf(both, { method: 'HEAD', url: '/v2/get_balance' })).toBe('balance');
  });

  test('it requires a key if an operation on that path requires one', () => {
    const operations = operationsOf([balance, action('checkout', 'required')]);
    expect(identify(operations, { method: 'PUT' }).keyRequired).toBe(true);
    expect(identify(operations, { url: '/v1/INDEX.php' }).keyRequired).toBe(true);
    expect(identify(operations, { method: 'GET' }).keyRequired).toBe(false);
    expect(identify(operations, { method: 'PUT', url: '/v2/get_balance' }).keyRequired).toBe(false);
  });
});

describe('a safe method', () => {
  const selecting: RequestShape[] = [
    { url: `${INDEX}?action=withdraw` },
    { url: `${INDEX}?Action=withdraw` },
    { url: `${INDEX}?action[]=withdraw` },
    { url: '/V1/index.php?action=withdraw' },
    { body: '{"action":"withdraw"}' },
    { type: FORM, body: 'action=withdraw' },
    { body: 'not JSON' },
    { body: undefined },
  ];

  test('is protected as `other` if it may select an operation that takes a key', () => {
    for (const method of ['GET', 'HEAD', 'OPTIONS', 'TRACE'])
      for (const shape of selecting)
        expect(identify(exampleOperations, { ...shape, method }), JSON.stringify(shape)).toMatchObject({
          operation: { name: 'other' },
          ...{ isProtected: true, isDeclared: false, scopes: ['withdraw', 'checkout'] },
        });
  });

  test('is not protected if it selects none', () => {
    for (const shape of [{}, { url: `${INDEX}?action=refund` }, { body: '{"action":"refund"}' }])
      expect(identify(exampleOperations, { ...shape, method: 'GET' }).isProtected).toBe(false);
    const withoutKeys = operationsOf([action('withdraw', 'none')]);
    for (const shape of selecting)
      expect(identify(withoutKeys, { ...shape, method: 'GET' }).isProtected).toBe(false);
  });

  test('is protected as an operation that is declared for it', () => {
    const operations = operationsOf([
      declare('pay', { method: 'GET', path: INDEX, where: { action: 'pay' } }, 'required'),
    ]);
    expect(identify(operations, { method: 'GET', url: `${INDEX}?action=pay` })).toMatchObject({
      operation: { name: 'pay' },
      ...{ isProtected: true, keyRequired: true },
    });
    expect(identify(operations, { method: 'GET' })).toMatchObject({
      operation: { name: 'other' },
      ...{ isProtected: false, keyRequired: false },
    });
  });
});

describe('a request is not protected', () => {
  test('if its operation has key: none', () => {
    const operations = operationsOf([action('withdraw', 'none'), action('checkout')]);
    expect(identify(operations, { body: '{"action":"withdraw"}' })).toMatchObject({
      operation: { name: 'withdraw' },
      ...{ isProtected: false, isDeclared: true },
    });
    expect(identify(operations, { body: '{"Action":"withdraw"}' }).isProtected).toBe(true);
  });

  test('under undeclared: pass, only if its path is undeclared', () => {
    const operations = operationsOf([balance, action('withdraw')], 'pass');
    expect(identify(operations, { url: '/v3/echo' })).toMatchObject({ isProtected: false, isRefused: false });
    expect(identify(operations, { body: '{"action":"refund"}' }).isProtected).toBe(true);
    expect(identify(operations, { url: '/V1/index.php' }).isProtected).toBe(true);
  });
});

test('undeclared: refuse refuses undeclared requests, lookalikes and overrides', () => {
  const operations = operationsOf([balance, action('withdraw')], 'refuse');
  const refused: RequestShape[] = [
    ...[{ url: '/v3/echo' }, { url: '/v3/echo', method: 'GET' }, { url: '/V1/index.php' }],
    ...[
      { method: 'PUT' },
      { method: 'GET', url: `${INDEX}?action=withdraw` },
      { method: 'HEAD', url: '/v2/get_balance' },
    ],
  ];
  for (const shape of refused)
    expect(identify(operations, shape).isRefused, JSON.stringify(shape)).toBe(true);
  // The backend may see another path or method than the gateway.
  for (const url of [INDEX, '/v3/echo', '/v2/get_balance'])
    for (const field of ['X-HTTP-Method-Override', 'X-Original-URL']) {
      const shape = { url, fields: { [field]: '/x' }, body: '{"action":"withdraw"}' };
      expect(identify(operations, shape).isRefused, `${url} ${field}`).toBe(true);
    }
  expect(identify(operations, { body: '{"action":"withdraw"}' }).isRefused).toBeFalsy();
  expect(identify(operations, { method: 'GET', url: '/v2/get_balance' }).isRefused).toBeFalsy();
});
