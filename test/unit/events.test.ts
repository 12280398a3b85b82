import { globSync } from 'node:fs';
import { pino } from 'pino';
import { expect, it } from 'vitest';
import { type Emit, Events } from '../../src/telemetry/emit.ts';
import { EVENTS } from '../../src/telemetry/events.ts';
import { AllMetrics } from '../../src/telemetry/metrics.ts';
import { eachRowInTurn } from '../support/each-row.ts';
import { checkLine } from '../support/log-lines.ts';
import { Scrape } from '../support/metrics.ts';
import { ROOT, read } from '../support/repository.ts';

const call = { recordId: 'a'.repeat(48), merchant: 'M-1', operation: 'withdraw', requestId: 'request-1' };
const withdraw = { operation: 'withdraw' };
const noAnswer = { cause: 'timeout', reason: 'no answer' } as const;

/** Events that are rare in other tests, and the series that counts each. */
const TOLD: [name: string, labels: Record<string, string>, tell: (emit: Emit) => void][] = [
  ['in_doubt', { ...withdraw, cause: 'timeout' }, (emit) => emit('in_doubt', { ...call, ...noAnswer })],
  ['merchant_in_doubt', { merchant: 'M-1' }, (emit) => emit('in_doubt', { ...call, ...noAnswer })],
  ['sent_again', withdraw, (emit) => emit('sent_again', call)],
  ['lease_lost', {}, (emit) => emit('lease_lost', call)],
  ['stale', { write: 'complete' }, (emit) => emit('stale', { ...call, write: 'complete' })],
  ['complete_late', withdraw, (emit) => emit('complete_late', { ...call, reason: 'no answer' })],
  [
    'lookups',
    { ...withdraw, result: 'failed' },
    (emit) => emit('lookups', { ...withdraw, result: 'failed' }),
  ],
  ['key_probes', { result: 'overloaded' }, (emit) => emit('keyProbes', { result: 'overloaded' })],
  [
    'unreadable_records',
    { reason: 'damaged' },
    (emit) => emit('unreadable', { ...call, reason: 'damaged', why: 'it is' }),
  ],
  [
    'key_reloads',
    { result: 'merchants_removed' },
    (emit) => emit('merchants_removed', { removed: 1, merchants: ['M-1'] }),
  ],
  ['complete_unreplicated', {}, (emit) => emit('unreplicated', {})],
  ['store_clock_steps', {}, (emit) => emit('clock_stepped', { stepMs: 5000 })],
];

it('each event is counted once, and logged as the table says', async () => {
  const metrics = new AllMetrics();
  metrics.nameMerchants(['M-1']);
  const logger = pino({ level: 'debug' }, { write: (line: string) => checkLine(line, JSON.parse(line)) });
  const { emit } = new Events(logger, metrics);
  await eachRowInTurn(TOLD, async ([name, labels, tell]) => {
    const count = async () => new Scrape(await metrics.text()).value(`oncegate_${name}_total`, labels) ?? 0;
    const before = await count();
    tell(emit);
    expect(await count()).toBe(before + 1);
  });
});

it('a metric of what is not logged gets the labels and the value that are told', async () => {
  const metrics = new AllMetrics();
  const { emit } = new Events(pino({ level: 'silent' }), metrics);
  emit('storeSeconds', { command: 'start', result: 'ok' }, 0.25);
  emit('sqliteCommitSeconds', {}, 0.5);
  const shown = new Scrape(await metrics.text());
  const start = { command: 'start', result: 'ok' };
  expect(shown.value('oncegate_store_duration_seconds_sum', start)).toBe(0.25);
  expect(shown.value('oncegate_sqlite_commit_duration_seconds_sum', {})).toBe(0.5);
});

it('the table has no event that nothing emits', () => {
  const sources = globSync('src/**/*.ts', { cwd: ROOT }).map(read).join('');
  const emitted = new Set(Array.from(sources.matchAll(/\bemit(?:\?\.)?\('(\w+)'/g), ([, name]) => name));
  const { request: _, ...events } = EVENTS;
  expect(Object.keys(events).filter((name) => !emitted.has(name))).toEqual([]);
});
