import { describe, expect, test } from 'vitest';
import { Operations } from '../../src/requests/operations.ts';
import {
  action,
  balance,
  declare,
  exampleOperations,
  expectIdentity,
  FORM,
  INDEX,
  idempotency,
  identify,
  nameOf,
  operationsOf,
  type RequestShape,
} from '../support/operations.ts';

/** Those of the example's path. */
const scopes = ['withdraw', 'checkout', 'undeclared'];
const byHeader = expect.stringContaining('header');
const byMethod = expect.stringContaining('method');

/** Two readers could take the request for different operations. */
const expectUnclear = (operations: Operations, shape: RequestShape, more: object = {}) =>
  expectIdentity(operations, shape, 'other', {
    ...{ unclear: expect.stringMatching(/\w/), isProtected: true, ...more },
  });

describe('a request is unclear if two readers could take it for different operations', () => {
  test.each<[string, RequestShape]>([
    ...[
      ...['{"action":true}', '{"action":0}', '{"action":null}', '{"action":["withdraw"]}'],
      ...['{"action":{"0":"withdraw"}}', '{"action":" withdraw"}', '{"action":"withdraw\\u0000x"}'],
      ...['{"action":"\\u00a0withdraw"}', '{"action":"CHECKOUT"}', '{" action":"withdraw"}'],
      // A parser in C ends the name at the NUL.
      ...['{"action\\u0000":"withdraw"}', '{"action":"refund","Action":"withdraw"}'],
      ...['{"action":"withdraw","action":"refund"}', '{"action":"withdraw"', '["withdraw"]'],
    ].map((body): [string, RequestShape] => [body, { body }]),
    [
      'the selecting member in the query and in JSON',
      { url: `${INDEX}?action=checkout`, body: '{"action":"checkout"}' },
    ],
    ['the selecting member twice in the query', { url: `${INDEX}?action=withdraw&action=withdraw` }],
    ['a body that is too large to be read', { body: undefined }],
    ...['action=withdraw', 'a=1; Action=x', '%61ction=', 'a=1,action[]=', '_method=PUT'].map(
      (Cookie): [string, RequestShape] => [
        `a cookie ${Cookie}`,
        { fields: { Cookie }, body: '{"action":"checkout"}' },
      ],
    ),
    ['a header that overrides the method', { fields: { 'X-HTTP-Method-Override': 'PUT' }, body: '{}' }],
    [
      'a header that overrides the path',
      { fields: { 'X-Original-URL': '/' }, body: '{"action":"checkout"}' },
    ],
  ])('%s', (_name, shape) => {
    expectUnclear(exampleOperations, shape, { isDeclared: false, keyRequired: false });
  });

  test.each([
    ...['X-HTTP-Method-Override', 'X-HTTP-Method', 'X-Method-Override', 'X-Original-URL', 'X-Rewrite-URL'],
  ])('a header %s makes it unclear, on every path and under every method', (name) => {
    for (const url of ['/v3/echo', '/v2/get_balance', '/V1/index.php'])
      for (const method of ['POST', 'GET', 'HEAD'])
        expectUnclear(exampleOperations, { method, url, fields: { [name]: '' } }, { unclear: byHeader });
  });

  test('a method in the query makes it unclear where the method decides', () => {
    const operations = operationsOf([
      declare('create', { method: 'POST', path: '/v1/payments' }),
      declare('cancel', { method: 'DELETE', path: '/v1/payments' }, 'required'),
    ]);
    for (const query of [
      ...['_method=DELETE', 'a=1&%5fmethod=delete', '+_METHOD=DELETE', 'a;_method=DELETE'],
      // ASP.NET MVC looks for the header's name in the form and in the query too.
      ...['X-HTTP-Method-Override=DELETE', 'a=1&x-http%2Dmethod-override=PUT'],
    ])
      expectUnclear(operations, { url: `/v1/payments?${query}` }, { unclear: byMethod, keyRequired: true });
    for (const shape of [{ fields: { Cookie: 'a=1; _Method=DELETE' } }, { url: '/v1/payments?.method=PUT' }])
      expect(identify(operations, { url: '/v1/payments', ...shape }).unclear).toContain('method');
    expect(nameOf(operations, { url: '/v1/payments', fields: { Cookie: 'method=DELETE' } })).toBe('create');
    expect(nameOf(exampleOperations, { body: '{"action":"checkout"}', fields: { Cookie: 'a=action' } })).toBe(
      'checkout',
    );
    expect(nameOf(operations, { url: '/v1/payments?method=DELETE' })).toBe('create');
    // WordPress runs the method of the query whatever the method of the request is.
    for (const [declared, url] of [
      [operations, '/v1/payments?_method=PUT'],
      [exampleOperations, '/v2/get_balance?_method=PUT'],
    ] as const)
      expectUnclear(declared, { url, method: 'GET' }, { unclear: byMethod });
  });
});

describe('while it is unclear which operation a request is', () => {
  const withPolicy = (operation: ReturnType<typeof declare>, release: number[], unknown: number[]) => ({
    ...operation,
    idempotency: { ...operation.idempotency, release, unknown },
  });
  const operations = new Operations(
    [
      // Its rate limiter counts the payouts that were made, and a proxy in front of it answers 500 for a lost connection.
      withPolicy(action('withdraw'), [401], [500, 502]),
      withPolicy(action('checkout'), [401, 429, 404], [502]),
      withPolicy(declare('note', { method: 'POST', path: '/v1/notes' }, 'none'), [], [418]),
      withPolicy(declare('refund', { method: 'POST', path: '/v1/refunds' }), [429], [503]),
    ],
    { idempotency: { ...idempotency, release: [401, 429], unknown: [502] }, undeclared: 'protect' },
  );
  const policyOf = (shape: RequestShape) => identify(operations, shape).operation.idempotency;

  test('a status frees its key only if it does so under each of them, and leaves it in doubt if it does so under one', () => {
    for (const shape of [
      ...[{ body: undefined }, { body: '[]' }, { url: '/V1/index.php' }, { method: 'PUT' }],
      ...[{ fields: { Cookie: 'action=x' }, body: '{"action":"checkout"}' }],
    ])
      expect(policyOf(shape), JSON.stringify(shape)).toMatchObject({ release: [401], unknown: [502, 500] });
    expect(policyOf({ url: '/v1/refunds/' })).toMatchObject({ release: [429], unknown: [502, 503] });
    expect(policyOf({ url: '/v1/refunds?_method=PUT' })).toMatchObject({ release: [429] });
  });

  test('and a header may override its path, it may be any that takes a key', () => {
    for (const url of ['/v3/echo', '/v1/refunds'])
      expect(policyOf({ url, fields: { 'X-Original-URL': INDEX } })).toMatchObject({
        ...{ release: [], unknown: [502, 500, 503] },
      });
  });

  test('an undeclared path has the default policy', () => {
    expect(policyOf({ url: '/v3/echo' })).toMatchObject({ release: [401, 429], unknown: [502] });
    expect(policyOf({ url: '/v1/Notes' })).toMatchObject({ release: [401, 429], unknown: [502] });
  });
});

describe('a method in the body', () => {
  const operations = operationsOf([declare('create', { method: 'POST', path: '/v1/payments' })]);
  const PARTS = 'multipart/form-data; boundary=x';
  const part = (name: string) => `--x\r\nContent-Disposition: form-data; ${name}\r\n\r\nDELETE\r\n--x--`;
  const overriding: RequestShape[] = [
    ...['_method=DELETE', 'a=1&_METHOD=x', '%5fmethod=x', '+_method=x', '.method=x', 'a;[method=x'].map(
      (body) => ({ type: FORM, body }),
    ),
    ...['X-HTTP-Method-Override=DELETE', 'a=1&x-http%2dmethod-override=x'].map((body) => ({
      ...{ type: FORM, body },
    })),
    ...[
      'name="x-http-method-override"',
      'name="_method"',
      'name=_method',
      'name="\\_me\\thod"',
      "name*=utf-8''%5Fmethod",
    ].map((name) => ({
      ...{ type: PARTS, body: part(name) },
    })),
    ...['name*0="_me"; name*1="thod"', 'name="=?utf-8?Q?=5Fmethod?="'].map((name) => ({
      ...{ type: PARTS, body: part(name) },
    })),
    ...['{"_method":"PUT"}', '{"\\u005fmethod":"PUT"}', '[{"_method":1}]'].map((body) => ({ body })),
    ...[{ type: '', body: '_method=PUT' }, { body: Buffer.from('{"_method":1}', 'utf16le') }],
    // Nobody sees what these hold.
    ...[{ body: undefined }, { body: '{', fields: { 'Content-Encoding': 'gzip' } }],
    { type: `${FORM}; charset=ibm037`, body: 'x' },
    // A reader that takes the first type reads a form.
    { type: '', body: '_method=PUT', fields: { 'content-type': 'image/png' } },
  ];
  const harmless: RequestShape[] = [
    ...['', 'payment_method=card&method=x&_methods=1&a=x.method', 'a=_method-x'].map((body) => ({
      ...{ type: FORM, body },
    })),
    ...[{ type: PARTS, body: part('name="payment_method"; filename="=?utf-8?Q?a?="') }],
    ...['{"payment_method":1,"a":"our _methods"}', 'no JSON', '[1]'].map((body) => ({ body })),
    ...[
      { type: 'image/png', body: '_method' },
      { type: 'application/octet-stream', body: undefined },
    ],
  ];

  test('makes a request of a restricted secret key unclear where the method decides', () => {
    for (const url of ['/v1/payments', '/v1/Payments/'])
      for (const shape of overriding) expectUnclear(operations, { url, ...shape, scopes: ['create'] });
    for (const shape of [...harmless, ...overriding.map((one) => ({ ...one, method: 'GET' }))])
      expect(identify(operations, { url: '/v1/payments', ...shape, scopes: ['create'] }).unclear).toBe(
        undefined,
      );
  });

  test('makes no difference for a key that may call everything', () => {
    for (const shape of [...overriding, ...harmless])
      expect(nameOf(operations, { url: '/v1/payments', ...shape }), JSON.stringify(shape)).toBe('create');
  });
});

describe('a request that only resembles a declared one', () => {
  test.each(['PUT', 'PATCH', 'DELETE', 'PROPFIND'])(
    '%s on a declared path: it is `other` and needs the scopes of that path, and `undeclared`',
    (method) => {
      const shape = { method, body: '{"action":"withdraw"}' };
      expectIdentity(exampleOperations, shape, 'other', { isDeclared: false, isProtected: true, scopes });
    },
  );

  test('a key for a read of a path does not write to it, also by a lookalike', () => {
    const scopesOf = (method: string, url: string) => identify(exampleOperations, { method, url }).scopes;
    for (const url of ['/v2/get_balance', '/v2/Get_balance', '/v2/get_balance/'])
      for (const method of ['POST', 'DELETE', 'OPTIONS', 'HEAD'])
        expect(scopesOf(method, url), `${method} ${url}`).toEqual(['balance', 'undeclared']);
    expect(scopesOf('GET', '/v2/Get_balance')).toEqual(['balance']);
    // The backend could take it for another method of either of two paths.
    const both = operationsOf([
      declare('show', { method: 'GET', path: '/v1/pay' }),
      declare('pay', { method: 'POST', path: '/v1/pay.php' }),
    ]);
    expect(identify(both, { url: '/v1/PAY' }).scopes).toEqual(['show', 'pay', 'undeclared']);
  });

  test('a pattern hides no lookalike of another declared path', () => {
    const operations = operationsOf([
      declare('payment', { method: ['POST', 'GET'], path: '/v1/payments/:id' }),
      declare('batch', { method: 'POST', path: '/v1/payments/batch' }, 'required'),
      declare('anything', { method: 'POST', path: '/v1/:a/:b/:c' }),
      declare('refund', { method: 'POST', path: '/v1/payments/:id/refund' }),
    ]);
    for (const name of ['Batch', 'b%61tch', 'batch;x', 'batch.php', 'batch%20', 'batch.json'])
      expectIdentity(operations, { url: `/v1/payments/${name}` }, 'other', {
        ...{ isProtected: true, keyRequired: true, scopes: ['payment', 'batch'] },
      });
    expect(identify(operations, { method: 'GET', url: '/v1/payments/Batch' }).scopes).toContain('batch');
    expect(identify(operations, { url: '/v1/payments/1/Refund' }).scopes).toEqual(['anything', 'refund']);
    for (const [url, name] of [
      ...[
        ['batches', 'payment'],
        ['Batc', 'payment'],
        ['1;x', 'payment'],
        ['1/refunds', 'anything'],
      ],
    ] as const)
      expect(nameOf(operations, { url: `/v1/payments/${url}` }), url).toBe(name);
  });

  test.each(['/V1/index.php', '/v1/index.php/withdraw'])(
    '%s: it is `other` and needs the scopes of the path that it resembles',
    (url) => {
      for (const method of ['POST', 'PUT', 'DELETE', 'GET', 'HEAD', 'OPTIONS'])
        expectIdentity(exampleOperations, { method, url }, 'other', {
          ...{ isDeclared: false, isProtected: method[0] === 'P' || method === 'DELETE' },
          scopes: method === 'POST' ? ['withdraw', 'checkout'] : scopes,
        });
    },
  );

  test.each<[url: string, pattern: string]>([
    ['/V1/payments/p-1/refund', '/v1/payments/:id/refund'],
    ['/v1/payments/p-1/Refund;x', '/v1/payments/:id/refund'],
    // What routers and servers ignore, as with paths without parameters.
    ...['.json', '.Do', '.php', '/index.html', '/Index'].map((ending): [string, string] => [
      `/v1/payments/p-1/refund${ending}`,
      '/v1/payments/:id/refund',
    ]),
    ...['', '/', '.php/x', '.PHP::$DATA', '.json'].map((ending): [string, string] => [
      `/v1/payments/p-1/refund${ending}`,
      '/v1/payments/:id/refund.php',
    ]),
    ['/v1/payments/p-1', '/v1/Payments/:ID/Index.PHP'],
    ['/v1/payments/p-1.json', '/v1/payments/:id.xml'],
    ['/V1/payments/p-1', '/v1/payments{/x.php/:id}/:id'],
  ])('%s resembles the declared pattern %s', (url, path) => {
    const operations = operationsOf([declare('refund', { method: 'POST', path })]);
    expectIdentity(operations, { url }, 'other', { scopes: ['refund'] });
  });

  test('whatever follows a dot at its end may be the name of a format, as for Rails and Spring', () => {
    const operations = operationsOf(
      [
        declare('pay', { method: 'POST', path: '/v1/payments' }, 'required'),
        declare('refund', { method: 'POST', path: '/v1/payments/:id/refund' }),
        declare('old', { method: 'POST', path: '/v1/old.json' }),
        declare('batch', { method: 'POST', path: '/v1/batches/now' }),
        declare('one', { method: 'POST', path: '/v1/batches/:id' }),
      ],
      'pass',
    );
    for (const [url, scopes] of [
      ...['.csv', '.x', '.', '.a.b', '%2Epdf', '.js/', '.text;x'].map((end) => [
        `/v1/payments${end}`,
        ['pay'],
      ]),
      ...[['/v1/Payments/p-1/refund.csv', ['refund']] as const, ['/v1/old.csv', ['old']] as const],
      ['/v1/batches/now.csv', ['one', 'batch']],
    ] as [string, string[]][])
      expectIdentity(operations, { url }, 'other', { isProtected: true, scopes });
    expect(identify(operations, { url: '/v1/payments.csv' }).keyRequired).toBe(true);
    // A name that only begins with a dot, a dot in another part of the path, and the value of a parameter.
    for (const url of ['/v1/.payments', '/v1.x/payments', '/v1/payments/.csv'])
      expect(nameOf(operations, { url }), url).toBe('undeclared');
    expect(nameOf(operations, { url: '/v1/batches/7.csv' })).toBe('one');
    // Calls with a dot in their names do not resemble each other.
    const calls = operationsOf([
      declare('create', { method: 'POST', path: '/api/payments.create' }, 'required'),
    ]);
    expect(nameOf(calls, { url: '/api/payments.list' })).toBe('undeclared');
    // But each has formats too.
    expectIdentity(calls, { url: '/api/payments.create.csv' }, 'other', { keyRequired: true });
  });

  test('a parameter may look like the name of a script', () => {
    const operations = operationsOf([
      declare('customer', { method: 'POST', path: '/v1/customers/:email' }),
      declare('charge', { method: 'POST', path: '/v1/customers/:email/charges' }),
    ]);
    expect(nameOf(operations, { url: '/v1/customers/jan@example.do/charges' })).toBe('charge');
  });

  test('HEAD on a path declared for GET: it is `other`', () => {
    const head = { method: 'HEAD', url: '/v2/get_balance' };
    const scopes = ['balance', 'undeclared'];
    expectIdentity(exampleOperations, head, 'other', { isDeclared: false, isProtected: false, scopes });
    const both = operationsOf([declare('balance', { method: ['GET', 'HEAD'], path: '/v2/get_balance' })]);
    expect(nameOf(both, head)).toBe('balance');
  });

  test('or is unclear, requires a key if an operation on its path requires one', () => {
    const both = operationsOf([action('withdraw'), action('checkout', 'required')]);
    expect(identify(both, { body: '{"Action":"withdraw"}' }).keyRequired).toBe(true);
    expect(identify(both, { fields: { 'X-HTTP-Method': 'GET' } }).keyRequired).toBe(true);
    // This is clearly not a checkout.
    expect(identify(both, { body: '{"action":"withdraw"}' }).keyRequired).toBe(false);
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
    { fields: { Cookie: 'action=withdraw' } },
    { body: 'not JSON' },
    { body: undefined },
  ];

  test('is protected as `other` if it may select an operation that takes a key', () => {
    for (const method of ['GET', 'HEAD', 'OPTIONS', 'TRACE'])
      for (const shape of selecting)
        expectIdentity(exampleOperations, { ...shape, method }, 'other', {
          ...{ isProtected: true, isDeclared: false, scopes },
        });
  });

  test('that is declared is unclear if it may select an operation of another method', () => {
    const page = declare('page', { method: ['GET', 'HEAD', 'OPTIONS', 'TRACE'], path: INDEX });
    const both = operationsOf([page, balance, action('withdraw', 'required'), action('refund', 'none')]);
    for (const shape of selecting.filter(({ url = INDEX }) => url.startsWith(INDEX)))
      for (const method of ['GET', 'HEAD']) expectUnclear(both, { ...shape, method }, { keyRequired: true });
    for (const url of [INDEX, `${INDEX}?action=show`])
      expectIdentity(both, { method: 'GET', url }, 'page', { isProtected: false, scopes: ['page'] });
    // Both methods are declared, or the member selects none of its own.
    const show = declare('show', { method: 'GET', path: INDEX, where: { action: 'withdraw' } });
    const pay = { method: 'GET', url: `${INDEX}?action=withdraw` };
    expect(nameOf(operationsOf([show, action('withdraw')]), pay)).toBe('show');
    const other = { ...pay, url: `${INDEX}?action=pay` };
    expectUnclear(operationsOf([show, action('pay')]), other, { unclear: expect.stringContaining('pay') });
    // An idempotency key has no effect on this operation, but its record id does.
    expect(identify(both, { method: 'GET', url: `${INDEX}?action=refund` })).toMatchObject({
      ...{ unclear: expect.stringContaining('refund'), isProtected: false, keyRequired: false },
    });
  });

  test('is unclear with an unsafe method too, if that is declared', () => {
    const update = declare('update', { method: 'PUT', path: INDEX });
    const both = operationsOf([update, action('withdraw', 'required')]);
    for (const shape of selecting.filter(({ url = INDEX }) => url.startsWith(INDEX)))
      expectUnclear(both, { ...shape, method: 'PUT' }, { keyRequired: true });
    for (const shape of [{}, { body: '{"action":"refund"}' }])
      expectIdentity(both, { ...shape, method: 'PUT' }, 'update', { isProtected: true, scopes: ['update'] });
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
    const pay = { method: 'GET', url: `${INDEX}?action=pay` };
    expectIdentity(operations, pay, 'pay', { isProtected: true, keyRequired: true });
    expectIdentity(operations, { method: 'GET' }, 'other', { isProtected: false, keyRequired: false });
  });
});

describe('a request is not protected', () => {
  test('if its operation has key: none', () => {
    const operations = operationsOf([action('withdraw', 'none'), action('checkout')]);
    const shape = { body: '{"action":"withdraw"}' };
    expectIdentity(operations, shape, 'withdraw', { isProtected: false, isDeclared: true });
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
