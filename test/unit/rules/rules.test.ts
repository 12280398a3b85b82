/**
 * The rules of a key's life, in every state that a register can hold, for every event. The promises beside this say what must
 * hold; the sabotage shows that they leave no choice.
 */
import { isDeepStrictEqual } from 'node:util';
import { expect, it } from 'vitest';
import { needsLease } from '../../../src/ledger/rules.ts';
import type { Held, Write } from '../../../src/store/register.ts';
import { eachRow } from '../../support/each-row.ts';
import {
  type Answer,
  CELLS,
  type Cell,
  cellOf,
  HAPPENINGS,
  type Outcome,
  REVISION,
  STATES,
} from './cells.ts';
import { broken, PROMISES, seen } from './promises.ts';

it('keeps every promise in every cell', () => {
  eachRow(CELLS, (cell) => expect(broken(cell, cell.outcome).join('; ')).toBe(''));
  const idle = Object.entries(PROMISES).filter(([, holds]) =>
    CELLS.every((cell) => holds(cell, seen(cell, cell.outcome)) === undefined),
  );
  expect(idle.map(([name]) => name)).toEqual([]);
});

it('asks lock nodes for a lease where an outcome depends on it, and nowhere else', () => {
  eachRow(
    STATES.filter(({ held }) => held),
    (state) => {
      const held = state.held as Held;
      const depends = HAPPENINGS.some((event) => {
        const [without, leased] = [false, true].map(
          (isLeased) => cellOf({ ...state, held: { ...held, isLeased } }, event, true, true).outcome,
        );
        return !isDeepStrictEqual(without, leased);
      });
      expect(needsLease(held)).toBe(depends);
    },
  );
});

/** Another state for each state, and another kind of write for each kind. */
const OTHER = new Map([
  ['executing', 'in_doubt'],
  ['in_doubt', 'completed'],
  ['completed', 'executing'],
  ['create', 'replace'],
  ['replace', 'create'],
]);

/** What can be in place of a value: nothing, another one of its kind, and for an object each that differs from it in one place. */
function changesOf(value: unknown): { what: string; value: unknown }[] {
  const dropped = { what: 'dropped', value: undefined };
  const to = (other: unknown) => ({ what: `is ${other}`, value: other });
  if (Buffer.isBuffer(value)) return [dropped, to(Buffer.alloc(value.length, value[0] === 99 ? 98 : 99))];
  if (typeof value === 'boolean') return [to(!value)];
  if (typeof value === 'number') return [to(value + 1), to('unchanged')];
  if (value === 'unchanged') return [to(0), to(1000)];
  if (typeof value === 'string') return [to(OTHER.get(value) ?? `${value}x`)];
  if (typeof value !== 'object' || value === null) return [to(Buffer.alloc(16, 99)), to(true)];
  const within = Object.entries(value).flatMap(([name, part]) =>
    changesOf(part).map((change) => ({
      what: `${name} ${change.what}`,
      value: { ...value, [name]: change.value },
    })),
  );
  return [dropped, ...within];
}

const ALONG = {
  ...{ unlessLeased: false, unlessClosed: false, mayBeLost: false },
  ...{ endLeaseOf: undefined, voidToken: undefined, audit: undefined, counted: undefined },
};

/** Everything that a rule with one mistake could say in this cell. `answers`: those to the same event in other cells. */
function mistakesIn({ held, outcome }: Cell, answers: Answer[]): { what: string; outcome: Outcome }[] {
  const { answer, write } = outcome;
  const others = [...answers.map((value) => ({ what: JSON.stringify(value), value })), ...changesOf(answer)];
  const answered = others
    .filter(({ value }) => value !== undefined && !isDeepStrictEqual(value, answer))
    .map(({ what, value }) => ({ what: `answer ${what}`, outcome: { ...outcome, answer: value as Answer } }));
  const record = held?.record;
  const touch = { kind: 'replace', revision: record?.revision, operation: 'withdraw' } as const;
  const writes = write
    ? changesOf(write.kind === 'create' ? write : { ...ALONG, ...write })
    : [
        { what: 'removes', value: { ...touch, expiresInMs: 0, record: undefined } },
        {
          what: 'touches',
          value: {
            ...touch,
            expiresInMs: 'unchanged',
            record: record && { ...record, revision: REVISION.new },
          },
        },
      ];
  const written = writes.map(({ what, value }) => ({
    what: `write ${what}`,
    outcome: { answer, ...(value ? { write: value as Write } : {}) },
  }));
  return [...answered, ...written];
}

it('would notice a mistake in any cell', () => {
  const answers = new Map<string, Map<string, Answer>>();
  for (const { kind, outcome } of CELLS) {
    const known = answers.get(kind) ?? new Map<string, Answer>();
    const { answer } = outcome;
    answers.set(kind, known.set(typeof answer === 'string' ? answer : answer.kind, answer));
  }
  let tried = 0;
  const missed: string[] = [];
  for (const cell of CELLS)
    for (const { what, outcome } of mistakesIn(cell, [...(answers.get(cell.kind)?.values() ?? [])])) {
      tried++;
      if (broken(cell, outcome).length === 0) missed.push(`${cell.name}: ${what}`);
    }
  expect(missed).toEqual([]);
  expect(tried).toBeGreaterThan(100_000);
});
