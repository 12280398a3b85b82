import type { KeyRecord } from '../../src/store/types.ts';
import { type Answer, cellOf, HAPPENINGS, STATES, type State } from '../../test/unit/rules/cells.ts';

/** What the store holds: the name in the table, and the state of the tests. */
const ROWS = new Map([
  ['nothing', 'nothing'],
  ['executing, its owner is alive', 'executing, young'],
  ['executing, its owner is dead', 'executing, older than its lease'],
  ['in doubt, left by its owner', 'in doubt by its owner, older than its lease'],
  ['in doubt, found by a request', 'in doubt by a reader, older than its lease'],
  ['in doubt, and its owner is alive again', 'in doubt by a reader, older than its lease, with a lease'],
  ['executing again (`retry`), its owner is alive', 'executing again, young'],
  ['executing again, its owner is dead', 'executing again, older than its lease'],
  ['in doubt again, left by its owner', 'executed again, and in doubt by its owner, older than its lease'],
  ['in doubt again, found by a request', 'executed again, and in doubt by a reader, older than its lease'],
  ['completed', 'completed'],
  ['completed, without its response', 'completed without its response'],
]);

/** What happens: the name in the table, the event of the tests, and whether it is the request of the record. */
const COLUMNS: [title: string, event: string, isSame: boolean][] = [
  ['a request', 'start', true],
  ['another request with the key', 'start', false],
  ['its owner: complete', 'complete', true],
  ['a transaction: commit', 'commit', true],
  ['release', 'release', true],
  ['leave in doubt', 'leave in doubt', true],
  ['start taken back', 'take the start back', true],
  ['restart', 'restart', true],
  ['resolve: executed', 'resolve as completed', true],
  ['resolve: not executed', 'resolve as released', true],
];

/** What a request does under a new token. */
const BEGINNINGS: ReadonlySet<string> = new Set(['start', 'restart', 'commit']);

const named = <T extends { name: string }>(all: readonly T[], name: string): T => {
  const found = all.find((one) => one.name === name);
  if (!found) throw new Error(`there is no ${name} in test/unit/rules/cells.ts`);
  return found;
};

const wordOf = (answer: Answer) => `\`${typeof answer === 'string' ? answer : answer.kind}\``;

function stateOf(record: KeyRecord | undefined): string {
  if (!record) return 'nothing';
  if (record.state === 'completed') return record.wasInDoubt ? 'completed, 30 days' : 'completed, 24 h';
  const again = record.restarted ? ' again' : '';
  if (record.state === 'executing') return `executing${again}`;
  return `in doubt${again}, ${record.ownerGaveUp ? 'left by its owner' : 'found by a request'}`;
}

function cellText(state: State, event: string, isSame: boolean): string {
  // The owner of a record that is there, and only a new owner where nothing is or for a restart.
  const isMine = state.held !== undefined && !BEGINNINGS.has(event);
  const { answer, write } = cellOf(state, named(HAPPENINGS, event), isMine, isSame).outcome;
  return write ? `${wordOf(answer)}, **${stateOf(write.record)}**` : wordOf(answer);
}

/** A row for each state of a key, a column for each event. */
export function statesTable(): string[] {
  const rows = [...ROWS].map(([title, name]) => {
    const state = named(STATES, name);
    const cells = COLUMNS.map(([, event, isSame]) => cellText(state, event, isSame));
    return `| ${title} | ${cells.join(' | ')} |`;
  });
  const head = `| the store holds | ${COLUMNS.map(([title]) => title).join(' | ')} |`;
  return [head, `|${'---|'.repeat(COLUMNS.length + 1)}`, ...rows];
}
