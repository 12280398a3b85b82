import { randomBytes, randomUUID } from 'node:crypto';
import type { OutgoingHttpHeaders } from 'node:http';
import { expect, it } from 'vitest';
import { send } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { legacyBackend, sha256 } from '../../support/legacy-backend.ts';
import { expectProblem } from '../../support/problem.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { ALPHA, chunk, head, LAST_CHUNK, Wire } from '../../support/wire.ts';

const BYTES = 2 * 1024 * 1024;
const operations: MoreConfig['operations'] = [
  { name: 'withdraw', match: { method: 'POST', path: '/v1/index.php', where: { action: 'withdraw' } } },
  { name: 'upload', match: { method: 'POST', path: '/v1/upload' } },
  {
    name: 'pay',
    match: { method: 'POST', path: '/v1/pay', where: { action: 'pay' } },
    idempotency: { key: 'required' },
  },
];

async function inFront(
  use: (stack: Stack, backend: Awaited<ReturnType<typeof legacyBackend>>) => Promise<void>,
) {
  const backend = await legacyBackend();
  const stack = await openStack({ upstream: { url: backend.url }, operations });
  try {
    await use(stack, backend);
  } finally {
    await stack.close();
  }
}

const framings: [string, OutgoingHttpHeaders][] = [
  ['in chunks', { 'Transfer-Encoding': 'chunked' }],
  ['of known length', { 'Content-Length': BYTES }],
];
/** An operation with `where`, one without it, and an undeclared path. */
const PATHS = ['/v1/index.php', '/v1/upload', '/v3/anything'];

it.each(framings)('a large body %s without a key is streamed byte for byte', async (_how, framing) => {
  await inFront(async ({ url, log }, { executions }) => {
    for (const path of PATHS) {
      const body = randomBytes(BYTES);
      const headers = {
        Authorization: 'Bearer sk_sandbox_alpha',
        'Content-Type': 'application/json',
        ...framing,
      };
      expect((await send(url, { method: 'POST', path, headers, body })).status).toBe(201);
      expect(executions.at(-1)).toEqual({
        ...{ method: 'POST', target: path, key: undefined, bytes: BYTES, sha256: sha256(body) },
        framing: Object.values(framing).join(),
      });
    }
    expect(executions).toHaveLength(PATHS.length);
    expect(log.filter(({ outcome }) => outcome === 'executed')).toEqual([]);
  });
});

it.each(framings)(
  'a large body %s with a key is answered 413, and nothing is sent',
  async (_how, framing) => {
    await inFront(async ({ url }, { executions }) => {
      for (const path of [...PATHS, '/V1/index.php', '/v1/pay']) {
        const headers = {
          ...{ Authorization: 'Bearer sk_sandbox_alpha', 'Content-Type': 'application/json', ...framing },
          'x-service-idempotency': randomUUID(),
        };
        const answer = await send(url, { method: 'POST', path, headers, body: Buffer.alloc(BYTES, 'x') });
        expect(answer.status).toBe(413);
        expectProblem(answer, { status: 413, code: 'body_too_large' });
      }
      expect(executions).toEqual([]);
    });
  },
);

it.each(framings)(
  'a large body %s without a key is refused where a key is required',
  async (_how, framing) => {
    await inFront(async ({ url }, { executions }) => {
      const headers = { Authorization: 'Bearer sk_sandbox_alpha', ...framing };
      const answer = await send(url, {
        method: 'POST',
        path: '/v1/pay',
        headers,
        body: Buffer.alloc(BYTES, 'x'),
      });
      expectProblem(answer, { status: 400, code: 'idempotency_key_required' });
      expect(executions).toEqual([]);
    });
  },
);

it('a large body that waits for 100 Continue gets it once', async () => {
  await inFront(async ({ port }, { executions }) => {
    for (const framing of ['Transfer-Encoding: chunked', `Content-Length: ${BYTES}`]) {
      const wire = await Wire.open(port);
      wire.write(head('POST /v1/index.php', ALPHA, framing, 'Expect: 100-continue'));
      expect((await wire.answer()).status).toBe(100);
      const body = 'x'.repeat(BYTES);
      wire.write(framing.startsWith('T') ? chunk(body) + LAST_CHUNK : body);
      expect((await wire.answer()).status).toBe(201);
      expect(executions.at(-1)).toMatchObject({ bytes: BYTES, sha256: sha256(Buffer.from(body)) });
    }
  });
});

it('a large body of known length with a key is refused instead of 100 Continue', async () => {
  await inFront(async ({ port }, { executions }) => {
    const wire = await Wire.open(port);
    const fields = [
      ALPHA,
      'x-service-idempotency: large-1',
      `Content-Length: ${BYTES}`,
      'Expect: 100-continue',
    ];
    expect((await wire.write(head('POST /v1/index.php', ...fields)).answer()).status).toBe(413);
    expect(executions).toEqual([]);
  });
});
