import { expect, it } from 'vitest';
import { mistakeIn } from '../support/log-lines.ts';

const head = { level: 'info', time: '2026-11-23T10:00:00.000Z', pid: 1 };
const request = {
  ...head,
  ...{ requestId: '0f0f0f0f', operation: 'withdraw', path: '/v1/pay', outcome: 'executed' },
  ...{ durationMs: 1.5, upstreamMs: 1, waitMs: 0, msg: 'request' },
};

it('the check of log lines refuses unknown messages, unknown and missing fields, other levels, and secrets', () => {
  const changes = [{ msg: 'another message' }, { key: 'order-1' }, { level: 'warn' }, { outcome: 'perhaps' }];
  const wrong = [...changes, { recordId: '0'.repeat(48) }, { requestId: undefined }];
  const isRight = (line: object) =>
    mistakeIn(JSON.stringify(line), JSON.parse(JSON.stringify(line))) === undefined;
  for (const line of [request, { ...request, traceId: 'a'.repeat(32) }]) expect(isRight(line)).toBe(true);
  for (const change of wrong) expect(isRight({ ...request, ...change }), JSON.stringify(change)).toBe(false);
  const leak = { ...head, level: 'warn', warning: 'sk_sandbox_alpha', msg: 'something needs attention' };
  expect(mistakeIn(JSON.stringify(leak), leak)).toBe('it has a secret key');
});
