import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { INTERFACES, type Interfaces, interfaces } from '../../scripts/interfaces.ts';

it('every option, default, problem code, metric, line of the log, export and command of the last release is still there', () => {
  const promised: Interfaces = JSON.parse(readFileSync(INTERFACES, 'utf8'));
  const now = interfaces();
  expect(Object.keys(promised)).toEqual(Object.keys(now));
  for (const [what, names] of Object.entries(promised)) {
    expect(names.length, what).toBeGreaterThan(10);
    const there = new Set(now[what]);
    const gone = names.filter((name) => !there.has(name));
    expect(gone, `${what}: a minor version must keep them (docs/releasing.md, Versions)`).toEqual([]);
  }
});

it('the list has what users name', () => {
  const promised: Interfaces = JSON.parse(readFileSync(INTERFACES, 'utf8'));
  const names: [what: string, name: string][] = [
    ['options', 'operations[].idempotency.inDoubt'],
    ['defaults of options', 'idempotency.inDoubtRetentionMs: 2592000000'],
    ['problem codes', 'outcome_unknown 409'],
    ['metrics', 'counter oncegate_unreadable_records_total{reason}'],
    ['lines of the log', 'listening: version'],
    ['package', 'createGateway'],
    ['package', 'IdempotencyOptions.merchant'],
    ['commands', 'records resolve --as'],
    ['commands', 'check --offline'],
  ];
  for (const [what, name] of names) expect(promised[what], what).toContain(name);
});
