import { expect } from 'vitest';
import type * as z from 'zod';
import type { Identity, OperationIdempotency } from '../../src/lib/context.ts';
import type { DeclaredOperation } from '../../src/requests/declared-paths.ts';
import { matchOptions } from '../../src/requests/match-options.ts';
import { Operations, type OperationsOptions } from '../../src/requests/operations.ts';
import { incoming } from './incoming.ts';

export { FORM } from './members.ts';

export type MatchInput = z.input<typeof matchOptions>;

export const idempotency: OperationIdempotency = {
  ...{ key: 'optional', inDoubt: 'hold', waitMs: 0 },
  ...{ release: [], unknown: [] },
};

export function declare(
  name: string,
  match: MatchInput,
  key: OperationIdempotency['key'] = 'optional',
): DeclaredOperation {
  return { name, match: matchOptions.parse(match), idempotency: { ...idempotency, key } };
}

export const INDEX = '/v1/index.php';
export const action = (name: string, key?: OperationIdempotency['key']) =>
  declare(name, { method: 'POST', path: INDEX, where: { action: name } }, key);
export const balance = declare('balance', { method: 'GET', path: '/v2/get_balance' });

export const operationsOf = (
  declared: DeclaredOperation[],
  undeclared: OperationsOptions['undeclared'] = 'protect',
) => new Operations(declared, { idempotency, undeclared });
export const exampleOperations = operationsOf([balance, action('withdraw'), action('checkout')]);

export interface RequestShape {
  method?: string;
  url?: string;
  /** Content-Type. Default application/json. */
  type?: string;
  fields?: Record<string, string>;
  /** Missing if it was too large to be read. */
  body?: string | Buffer | undefined;
  /** Those of the secret key. Default `*`. */
  scopes?: string[];
}

export function identify(operations: Operations, shape: RequestShape): Identity {
  const { method = 'POST', url = INDEX, type = 'application/json', fields = {} } = shape;
  const req = incoming(method, url, { 'Content-Type': type, ...fields });
  const body = 'body' in shape && shape.body === undefined ? undefined : Buffer.from(shape.body ?? '');
  return operations.identify(operations.matchHead(req, shape.scopes), req, body);
}

export const nameOf = (operations: Operations, shape: RequestShape) =>
  identify(operations, shape).operation.name;

/** The request is one of this operation. `more`: other members of its identity. */
export function expectIdentity(
  operations: Operations,
  shape: RequestShape,
  name: string,
  more: object = {},
): void {
  const identity = identify(operations, shape);
  expect(identity, JSON.stringify(shape)).toMatchObject({ operation: { name }, ...more });
}
