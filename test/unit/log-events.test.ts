import { globSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { EVENTS } from '../../src/telemetry/events.ts';
import type { LogEvent } from '../../src/telemetry/log-event.ts';
import { mistakeIn } from '../support/log-lines.ts';
import { ROOT, read } from '../support/repository.ts';

const head = { level: 'info', time: '2026-11-23T10:00:00.000Z', pid: 1 };
const request = {
  ...head,
  ...{ requestId: '0f0f0f0f', operation: 'withdraw', path: '/v1/pay', outcome: 'executed' },
  ...{ durationMs: 1.5, upstreamMs: 1, waitMs: 0, msg: 'request' },
};

describe('the catalogue of log lines', () => {
  it('has every message that the source writes, at its level, and no other', () => {
    const written = new Map<string, Set<string>>();
    for (const path of globSync('src/**/*.ts', { cwd: ROOT })) {
      if (path.startsWith('src/sandbox')) continue;
      const source = read(path);
      const calls = source.matchAll(
        /\blogger(?:\?)?\.(debug|info|warn|error|fatal)\(\s*(?:[^']*?,\s*)?'([^']+)',?\s*\)/g,
      );
      for (const [, level = '', message = ''] of calls)
        written.set(message, (written.get(message) ?? new Set()).add(level));
      const plain =
        source.match(/\blogger(?:\?)?\.(?:debug|info|warn|error|fatal)\(\s*[`"a-z]\w*[`).]/g) ?? [];
      expect(plain, `${path} writes a message that is not a constant`).toEqual([]);
    }
    // These two take their level or their message from a variable.
    written.set('a lookup did not decide a key in doubt', new Set(['warn', 'debug']));
    written.set('waiting for the store to take the last writes before this process ends', new Set(['warn']));
    const expected = Object.values<LogEvent>(EVENTS).map(
      ({ message, level, laterLevel }) =>
        [message, [level, ...(laterLevel ? [laterLevel] : [])].sort()] as const,
    );
    expect([...written].map(([msg, levels]) => [msg, [...levels].sort()]).sort()).toEqual(
      expected.toSorted(),
    );
  });

  it('refuses unknown messages, unknown and missing fields, other levels, and secrets', () => {
    const changes = [
      { msg: 'another message' },
      { key: 'order-1' },
      { level: 'warn' },
      { outcome: 'perhaps' },
    ];
    const wrong = [...changes, { recordId: '0'.repeat(64) }, { requestId: undefined }];
    const isRight = (line: object) =>
      mistakeIn(JSON.stringify(line), JSON.parse(JSON.stringify(line))) === undefined;
    for (const line of [request, { ...request, traceId: 'a'.repeat(32) }]) expect(isRight(line)).toBe(true);
    for (const change of wrong)
      expect(isRight({ ...request, ...change }), JSON.stringify(change)).toBe(false);
    const leak = { ...head, level: 'warn', warning: 'sk_sandbox_alpha', msg: 'something needs attention' };
    expect(mistakeIn(JSON.stringify(leak), leak)).toBe('it has a secret key');
  });
});
