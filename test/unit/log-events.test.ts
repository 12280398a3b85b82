import { globSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Validator } from '@cfworker/json-schema';
import { describe, expect, it } from 'vitest';
import { logJsonSchema, withTable } from '../../scripts/log-schema.ts';
import { LOG_EVENTS } from '../../src/observability/log-events.ts';
import { mistakeIn } from '../support/log-lines.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const read = (path: string) => readFileSync(`${ROOT}${path}`, 'utf8');

const head = { level: 'info', time: '2026-11-23T10:00:00.000Z', pid: 1 };
const request = {
  ...head,
  ...{ requestId: '0f0f0f0f', operation: 'withdraw', path: '/v1/pay', outcome: 'executed' },
  ...{ durationMs: 1.5, upstreamMs: 1, waitMs: 0, msg: 'request' },
};

describe('the schema of the log', () => {
  it('is in docs/log.schema.json and in the table of docs/operations.md: node scripts/log-schema.ts', () => {
    expect(JSON.parse(read('docs/log.schema.json'))).toEqual(logJsonSchema());
    const page = read('docs/operations.md');
    expect(page).toBe(withTable(page));
    expect(page).toContain('| a record cannot be read | error | `scope`, `reason`, `why` |');
  });

  it('has every message that the source writes, at its level, and no other', () => {
    const written = new Map<string, Set<string>>();
    for (const path of globSync('src/**/*.ts', { cwd: ROOT })) {
      if (path.startsWith('src/sandbox') || path === 'src/observability/log-events.ts') continue;
      const source = read(path);
      const calls = [
        ...source.matchAll(
          /\blogger(?:\?)?\.(debug|info|warn|error|fatal)\(\s*(?:[^']*?,\s*)?'([^']+)',?\s*\)/g,
        ),
        ...source.matchAll(/#options\.(log)\(\s*[^']*?,\s*'([^']+)',?\s*\)/g),
      ];
      for (const [, level = '', message = ''] of calls) {
        // The primary passes its lines to a function that writes them at this level.
        const at = level === 'log' ? 'warn' : level;
        written.set(message, (written.get(message) ?? new Set()).add(at));
      }
      const plain =
        source.match(/\blogger(?:\?)?\.(?:debug|info|warn|error|fatal)\(\s*[`"a-z]\w*[`).]/g) ?? [];
      expect(plain, `${path} writes a message that is not a constant`).toEqual([]);
    }
    // These two take their level or their message from a variable.
    written.set('a lookup did not decide a key in doubt', new Set(['warn', 'debug']));
    written.set('waiting for the store to take the last writes before this process ends', new Set(['warn']));
    const expected = LOG_EVENTS.map(({ msg, levels }) => [msg, [...levels].sort()] as const);
    expect([...written].map(([msg, levels]) => [msg, [...levels].sort()]).sort()).toEqual(
      expected.toSorted(),
    );
  });

  it('refuses unknown messages, unknown and missing fields, other levels, and secrets', () => {
    const validator = new Validator(logJsonSchema() as object, '2020-12', false);
    const wrong: Record<string, unknown>[] = [
      { ...request, msg: 'another message' },
      { ...request, key: 'order-1' },
      { ...request, level: 'warn' },
      { ...request, outcome: 'perhaps' },
      { ...request, scope: '0'.repeat(64) },
      { ...request, requestId: undefined },
      { ...head, msg: 'listening' },
    ];
    const verdict = (line: object) => ({
      ours: mistakeIn(JSON.stringify(line), JSON.parse(JSON.stringify(line))) === undefined,
      theirs: validator.validate(JSON.parse(JSON.stringify(line))).valid,
    });
    const traced = { ...request, traceId: 'a'.repeat(32) };
    for (const line of [request, traced]) expect(verdict(line)).toEqual({ ours: true, theirs: true });
    for (const line of wrong)
      expect(verdict(line), JSON.stringify(line)).toEqual({ ours: false, theirs: false });
    const leak = {
      ...head,
      level: 'warn',
      warning: 'keys: sk_sandbox_alpha',
      msg: 'something needs attention',
    };
    expect(mistakeIn(JSON.stringify(leak), leak)).toBe('it has a secret key');
  });
});
