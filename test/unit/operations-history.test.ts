import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { DeclaredOperation } from '../../src/requests/declared-paths.ts';
import { OperationsHistory } from '../../src/requests/operations.ts';
import {
  action,
  declare,
  expectIdentity,
  INDEX,
  idempotency,
  identify,
  type RequestShape,
} from '../support/operations.ts';

/** The operations of the last version, after all the others were in force. */
function lastOf(...versions: DeclaredOperation[][]) {
  const history = new OperationsHistory({ idempotency, undeclared: 'pass' });
  const all = versions.map((declared) => history.next(declared));
  return all.at(-1) as (typeof all)[number];
}

const payout: RequestShape = { body: '{"action":"withdraw"}' };
const byGet: RequestShape = { method: 'GET', url: `${INDEX}?action=withdraw` };

describe('a reload takes protection from no request', () => {
  test('if its operation loses its key, is removed, or is hidden by another one', () => {
    const hidden = [
      declare('all', { method: ['GET', 'POST'], path: '/v1/:file' }, 'none'),
      action('withdraw'),
    ];
    const safe = [declare('page', { method: 'GET', path: INDEX }), action('withdraw')];
    for (const next of [[action('withdraw', 'none')], [], hidden, safe])
      for (const shape of [payout, byGet]) {
        expect(identify(lastOf([action('withdraw')], next), shape).isProtected).toBe(true);
        expect(identify(lastOf([action('withdraw')], next, []), shape).isProtected).toBe(true);
      }
  });

  test('and the new version names its operation', () => {
    const renamed = [declare('payout', { method: 'POST', path: INDEX }, 'none')];
    const now = lastOf([action('withdraw')], renamed);
    expectIdentity(now, payout, 'payout', { scopes: ['payout'], isProtected: true, keyRequired: false });
  });

  test('whatever the operations are', () => {
    const path = fc.constantFrom(INDEX, '/v1/:file', '/V1/index.php', '/v1/');
    const operation = fc.record({
      path,
      methods: fc.constantFrom<string[]>(['GET'], ['POST'], ['GET', 'POST']),
      key: fc.constantFrom('none' as const, 'optional' as const),
      value: fc.constantFrom(undefined, 'withdraw', 'checkout'),
    });
    const list = fc
      .array(operation, { maxLength: 3 })
      .map((all) =>
        all.map(({ path: at, methods, key, value }, i) =>
          declare(`o${i}`, { method: methods, path: at, ...(value && { where: { action: value } }) }, key),
        ),
      );
    const shape = fc.record({
      method: fc.constantFrom('GET', 'POST'),
      url: fc.constantFrom(INDEX, `${INDEX}?action=withdraw`, '/v1/index.PHP', '/v1/', '/else'),
      body: fc.constantFrom('', '{"action":"withdraw"}', '{"action":"checkout"}', '{'),
    });
    fc.assert(
      fc.property(list, list, shape, (before, next, request) => {
        const wasProtected = identify(lastOf(before), request).isProtected;
        const isProtected = identify(lastOf(next), request).isProtected;
        expect(identify(lastOf(before, next), request).isProtected).toBe(wasProtected || isProtected);
      }),
    );
  });
});
