import { describe, expect, it } from 'vitest';
import { entriesOf } from '../../src/console/views/timeline.ts';
import type { AuditView, RecordView } from '../../src/doubts/record-view.ts';

const time = (second: number) => `2026-11-26T10:00:0${second}.000Z`;

const record = (state: RecordView['state'], createdAt: string, changedAt: string): RecordView => ({
  ...{ recordId: 'a'.repeat(48), state, createdAt, changedAt, requestId: 'r-1', gatewayId: 'g-1' },
});

const resolved = (
  as: 'completed' | 'released',
  at: string,
  [createdAt, changedAt]: [string, string],
): AuditView => ({
  ...{ at, by: 'ada', reason: 'the books', to: { as, ...(as === 'completed' && { status: 201 }) } },
  from: { state: 'in_doubt', merchant: 'M-ALPHA', operation: 'withdraw', createdAt, changedAt },
});

const textsOf = (now: RecordView | null, audit: AuditView[]) =>
  entriesOf({ recordId: 'a'.repeat(48), record: now, audit }).map(
    ({ at, text }) => `${at.slice(18, 19)} ${text}`,
  );

const DOUBT = 'in doubt: the backend’s answer did not arrive.';
const STARTED = 'started by request r-1 on gateway g-1.';

describe('what the console says happened to a key', () => {
  it('is its start, and what it became', () => {
    expect(textsOf(record('executing', time(1), time(1)), [])).toEqual([`1 ${STARTED}`]);
    expect(textsOf(record('completed', time(1), time(2)), [])).toEqual([
      `1 ${STARTED}`,
      '2 completed with the backend’s response.',
    ]);
    expect(textsOf(record('in_doubt', time(1), time(2)), [])).toEqual([`1 ${STARTED}`, `2 ${DOUBT}`]);
  });

  it('is told once, although each resolution repeats the start', () => {
    const completed = resolved('completed', time(3), [time(1), time(2)]);
    expect(textsOf(record('completed', time(1), time(3)), [completed])).toEqual([
      `1 ${STARTED}`,
      `2 ${DOUBT}`,
      '3 resolved as completed with status 201, by ada. Reason: the books',
    ]);
  });

  it('has the start of each execution, and is known from the audit trail when the record is gone', () => {
    const released = resolved('released', time(3), [time(1), time(2)]);
    const first = ['1 started.', `2 ${DOUBT}`, '3 resolved as released, by ada. Reason: the books'];
    expect(textsOf(null, [released])).toEqual(first);
    expect(textsOf(record('completed', time(4), time(5)), [released])).toEqual([
      ...first,
      `4 ${STARTED}`,
      '5 completed with the backend’s response.',
    ]);
  });

  it('is nothing of a record that cannot be read', () => {
    expect(textsOf({ recordId: 'a'.repeat(48), state: 'unreadable' }, [])).toEqual([]);
  });
});
