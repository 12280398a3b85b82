import { pino } from 'pino';
import { expect, it } from 'vitest';
import { Metrics } from '../../src/telemetry/metrics.ts';
import { Observer } from '../../src/telemetry/observer.ts';
import { eachRowInTurn } from '../support/each-row.ts';
import { checkLine } from '../support/log-lines.ts';
import { Scrape } from '../support/metrics.ts';

const call = { recordId: 'a'.repeat(64), merchant: 'M-1', operation: 'withdraw', requestId: 'request-1' };
const withdraw = { operation: 'withdraw' };

/** Events that are rare in other tests, and the series that counts each. */
const EVENTS: [name: string, labels: Record<string, string>, happen: (observer: Observer) => void][] = [
  ['in_doubt', { ...withdraw, cause: 'timeout' }, (seen) => seen.inDoubt(call, 'timeout', 'no answer')],
  ['sent_again', withdraw, (seen) => seen.sendsAgain(call)],
  ['lease_lost', {}, (seen) => seen.leaseLost(call)],
  ['stale', { write: 'complete' }, (seen) => seen.stale('complete', call)],
  ['complete_late', withdraw, (seen) => seen.completeLate(call, new Error('no answer'))],
  ['lookups', { ...withdraw, result: 'failed' }, (seen) => seen.lookedUp('withdraw', 'failed')],
  ['key_probes', { result: 'overloaded' }, (seen) => seen.keyProbed('overloaded')],
  ['unreadable_records', { reason: 'damaged' }, (seen) => seen.unreadable(call.recordId, 'damaged', 'it is')],
  ['complete_unreplicated', {}, (seen) => seen.unreplicated()],
  ['store_clock_steps', {}, (seen) => seen.clockStepped(5000)],
];

it('each event is counted once, and logged as the catalogue says', async () => {
  const metrics = new Metrics();
  const logger = pino({ level: 'debug' }, { write: (line: string) => checkLine(line, JSON.parse(line)) });
  const observer = new Observer(metrics, logger);
  await eachRowInTurn(EVENTS, async ([name, labels, happen]) => {
    const count = async () => new Scrape(await metrics.text()).value(`oncegate_${name}_total`, labels) ?? 0;
    expect(await count()).toBe(0);
    happen(observer);
    expect(await count()).toBe(1);
  });
});
