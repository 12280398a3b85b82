import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { FAULTS } from '../../../src/sandbox/faults.ts';
import { send } from '../../support/client.ts';
import { codeOf, openapiDocument, undocumented } from '../../support/openapi.ts';
import { openStack, type Stack } from '../../support/stack.ts';

const RUNS = Number(process.env.OPENAPI_RUNS ?? 300);
const SEED = process.env.OPENAPI_SEED;

let stack: Stack;
beforeAll(async () => {
  stack = await openStack({
    idempotency: { maxStoredBytes: 2048 },
    limits: { bodyBytes: 4096 },
    upstream: { responseTimeoutMs: 300 },
  });
});
afterAll(() => stack.close());

interface Schema {
  $ref?: string;
  oneOf?: Schema[];
  type?: string;
  const?: unknown;
  pattern?: string;
  minLength?: number;
  maxLength?: number;
  properties?: Record<string, Schema>;
  required?: string[];
}

interface Parameter {
  name: string;
  schema: Schema;
}

const componentOf = <T>(ref: string): T =>
  ref
    .slice(2)
    .split('/')
    .reduce((at, name) => at[name], openapiDocument) as T;

/** Values that fit a schema. */
function fitting(schema: Schema): fc.Arbitrary<unknown> {
  if (schema.$ref) return fitting(componentOf(schema.$ref));
  if (schema.oneOf) return fc.oneof(...schema.oneOf.map(fitting));
  if (schema.const !== undefined) return fc.constant(schema.const);
  if (schema.properties) {
    const members = Object.entries(schema.properties).map(([name, member]) => [name, fitting(member)]);
    const record: Record<string, fc.Arbitrary<unknown>> = Object.fromEntries(members);
    return fc.record(record, { requiredKeys: schema.required ?? [] });
  }
  if (schema.pattern) return fc.stringMatching(new RegExp(schema.pattern));
  if (schema.type === 'number') return fc.double({ min: 0.01, max: 1000, noNaN: true });
  if (schema.type === 'string')
    return fc.string({ minLength: schema.minLength ?? 0, maxLength: schema.maxLength ?? 100 });
  throw new Error(`the test cannot make values of ${JSON.stringify(schema)}`);
}

/** Node's client sends no control characters, and trims nothing. */
const sendable = (text: string) => text.replace(/[^\x20-\x7e]/g, '');
const headerText = fc.string({ maxLength: 300 }).map(sendable);

/** Mostly as documented, sometimes anything. */
const mostly = <T>(documented: fc.Arbitrary<T>, other: fc.Arbitrary<T>) =>
  fc.oneof({ weight: 4, arbitrary: documented }, { weight: 1, arbitrary: other });

function headersOf(parameters: Parameter[]): fc.Arbitrary<Record<string, string>> {
  const each = parameters.map(({ name, schema }) => [
    name,
    mostly(fitting(schema).map(String).map(sendable), headerText),
  ]);
  return fc.record(Object.fromEntries(each), { requiredKeys: [] }) as fc.Arbitrary<Record<string, string>>;
}

const secrets = fc.constantFrom(
  ...[
    'Bearer sk_sandbox_alpha',
    'Bearer sk_sandbox_alpha',
    'Bearer sk_sandbox_bravo',
    'Bearer sk_test_expired',
  ],
  ...['Bearer sk_test_balance_only', 'Basic eDp5', 'Bearer ', ''],
);

const withValue: Record<string, { does: string; value?: { unit: string } }> = FAULTS;
const faults = fc.constantFrom(
  ...Object.entries(withValue).map(([name, { value }]) =>
    value ? `${name}=${value.unit === 'NNN' ? 418 : 5}` : name,
  ),
  ...['status=502', 'status=403', 'huge=4000', 'status=504', 'status=200'],
);

/** As the request's body, and as what a careless client makes of it. */
function bodies(schema: Schema): fc.Arbitrary<string> {
  return mostly(
    fitting(schema).map((value) => JSON.stringify(value)),
    fc.oneof(
      fc.json(),
      fc.string(),
      fc.constant('action=withdraw&amount=1&bank_code=1&account_number=2'),
      fc.constant('x'.repeat(5000)),
    ),
  );
}

const requests = fc.oneof(
  ...Object.entries<
    Record<
      string,
      { parameters: { $ref: string }[]; requestBody?: { content: Record<string, { schema: Schema }> } }
    >
  >(openapiDocument.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { parameters, requestBody }]) => {
      const [[type, content] = []] = Object.entries(requestBody?.content ?? {});
      return fc.record({
        path: fc.constant(path),
        method: fc.constant(method.toUpperCase()),
        headers: headersOf(parameters.map(({ $ref }) => componentOf<Parameter>($ref))),
        authorization: secrets,
        type: mostly(
          fc.constant(type),
          fc.constantFrom('text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data'),
        ),
        body: content ? bodies(content.schema) : fc.constant(undefined),
        fault: fc.option(faults, { freq: 2, nil: undefined }),
        times: fc.integer({ min: 1, max: 2 }),
      });
    }),
  ),
);

it('no answer to a request made from config/openapi.yaml is undocumented', { timeout: 120_000 }, async () => {
  const seen = new Set<string>();
  await fc.assert(
    fc.asyncProperty(requests, async ({ path, method, headers, authorization, type, body, fault, times }) => {
      const sent = {
        ...headers,
        ...(authorization && { Authorization: authorization }),
        ...(type && { 'Content-Type': type }),
        ...(fault && { 'X-Sandbox-Fault': fault }),
      };
      for (let i = 0; i < times; i++) {
        const answer = await send(stack.url, {
          method,
          path,
          headers: sent,
          ...(body === undefined ? {} : { body }),
        });
        // A backend with a fault answers anything, and the gateway passes it on.
        if (codeOf(answer) || !fault) expect(undocumented(method, path, answer)).toEqual([]);
        seen.add(`${answer.status} ${codeOf(answer) ?? 'of the backend'}`);
      }
    }),
    { numRuns: RUNS, ...(SEED ? { seed: Number(SEED) } : {}) },
  );
  // Otherwise the requests show little.
  expect(seen.size).toBeGreaterThan(8);
});
