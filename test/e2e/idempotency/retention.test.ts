import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { isReplay, withdraw } from '../../support/client.ts';
import { executionOf } from '../../support/execution.ts';
import { movableClock } from '../../support/movable-clock.ts';
import { expectProblem } from '../../support/problem.ts';
import { stackForFile } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const RETENTION_MS = 24 * 3_600_000;
const inDoubt = { status: 409, code: 'outcome_unknown' } as const;

const clock = movableClock();
const stack = await stackForFile({}, {}, clock);

describe('once its retention has passed', () => {
  it('a key is new, however often it was replayed meanwhile', async () => {
    const key = randomUUID();
    const first = await withdraw(stack.url, { key });
    for (let hour = 0; hour < 23; hour++) {
      clock.pass(3_600_000);
      const again = await withdraw(stack.url, { key });
      expect([isReplay(again), again.body]).toEqual([true, first.body]);
    }
    clock.pass(3_600_000);
    const second = await until(async () => {
      const answer = await withdraw(stack.url, { key });
      return isReplay(answer) ? undefined : answer;
    });
    expect([second.status, stack.sandbox.ledger.payouts({ key })]).toEqual([201, 2]);
    expect((await withdraw(stack.url, { key })).body).toEqual(second.body);
  });

  it('a key in doubt is still in doubt, and is not executed again', async () => {
    const key = randomUUID();
    const first = await withdraw(stack.url, { key, fault: 'execute-then-reset' });
    expectProblem(first, { status: 502, code: 'outcome_unknown' });
    clock.pass(RETENTION_MS + 1);
    expectProblem(await withdraw(stack.url, { key }), inDoubt);

    // Its result is replayed for longer than a retention.
    const body = Buffer.from('{"success":true,"data":{"from":"the books"}}');
    const { desk } = stack.gateway;
    const recordId = recordIdOf('gateway', 'M-ALPHA', key);
    const resolved = await desk.resolve({
      ...{ recordId, execution: await executionOf(desk, recordId), by: 'ada', reason: 'books' },
      ...{ as: 'completed', status: 201, body: body.toString('base64') },
    });
    expect(resolved).toMatchObject({ kind: 'found', value: { from: { state: 'in_doubt' } } });
    for (const _ of ['now', 'a day later']) {
      const replay = await withdraw(stack.url, { key });
      expect([replay.status, isReplay(replay), replay.body]).toEqual([201, true, body]);
      clock.pass(RETENTION_MS + 1);
    }
    expect(stack.sandbox.requests.ofKey(key)).toBe(1);
  });
});
