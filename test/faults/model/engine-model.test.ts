/**
 * Several engines on one real store, with calls of one key that end at random, store commands that fail at random, and owners
 * that are silent for a lease. At most one request may have been executed, every call gets its result, and the key gets the
 * state that the table of outcomes says. `MODEL_RUNS=3000 npx vitest run test/faults/model` makes as many plans on each store; a
 * failure prints the seed and the shortest plan that still fails, and `MODEL_SEED=…` runs from that seed again.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { until } from '../../support/until.ts';
import { type End, EngineRun, type Made, type PlannedCall, plans, type Step } from './engine-plan.ts';
import { universes } from './worlds.ts';

const RUNS = Number(process.env.MODEL_RUNS ?? 30);
const SEED = process.env.MODEL_SEED;

const callThat = (end: End, fault: PlannedCall['fault'] = null): PlannedCall[] => [{ engine: 0, end, fault }];

/** Plans that give each kind of result once. Thirty random plans may leave one of them out. */
const ALL_KINDS: Step[][] = [
  [callThat('complete'), callThat('complete')],
  [callThat('unknown'), callThat('complete')],
  [callThat('never'), callThat('complete')],
  [callThat('complete', { write: 'start', when: 'before', times: 2 })],
];
const parameters = {
  numRuns: RUNS + ALL_KINDS.length,
  examples: ALL_KINDS.map((plan): [Step[]] => [plan]),
  ...(SEED ? { seed: Number(SEED) } : {}),
};

/** The table of outcomes: the state of the key after each end of the request. */
const DECISIONS = {
  complete: 'complete',
  oversize: 'complete',
  refused: 'release',
  not_sent: 'release',
  unknown: 'in_doubt',
  unknown_status: 'in_doubt',
  throws: 'in_doubt',
} as const;

const UNKNOWN: End[] = ['unknown', 'unknown_status', 'throws'];
const MAY_HAVE_EXECUTED: End[] = ['complete', 'oversize', 'never', ...UNKNOWN];

/** The attempt that may have been executed. */
function theExecuted({ made }: EngineRun): Made | undefined {
  const executed = made.filter(({ call, end }) => call.counted.runs > 0 && MAY_HAVE_EXECUTED.includes(end));
  expect(executed.length).toBeLessThanOrEqual(1);
  return executed[0];
}

function checkResult(run: EngineRun, { call, end, response, result }: Made): void {
  const executed = theExecuted(run);
  if (!result) return;
  expect(call.counted.runs).toBe(result.kind === 'executed' ? 1 : 0);
  if (result.kind === 'executed') {
    const decision = DECISIONS[end as keyof typeof DECISIONS];
    expect(result).toMatchObject({ decision, stored: decision === 'complete' });
    if (!['not_sent', 'unknown', 'throws'].includes(end)) expect(result.exchange).toBe(response);
  } else if (result.kind === 'replayed') {
    expect(executed?.end).toBe('complete');
    expect({ kind: 'complete', response: result.response }).toEqual(executed?.response);
    expect(result.requestId).toBe(executed?.call.requestId);
  } else if (result.kind === 'tombstone') {
    expect(executed?.end).toBe('oversize');
  } else if (result.kind === 'in_doubt') {
    expect(run.lapsed || (executed && UNKNOWN.includes(executed.end))).toBe(true);
  } else if (result.kind === 'store_unavailable') {
    expect(run.faults).toBeGreaterThan(0);
  } else {
    expect(result.kind).toBe('in_flight');
  }
}

/** The result of one more call after the store has answered all writes. */
async function checkEnd(run: EngineRun): Promise<void> {
  await run.quiet();
  const executed = theExecuted(run);
  // After many failures the engine tries a start only occasionally.
  const { result, response } = await until(async () => {
    const made = await run.call({ engine: 0, end: 'complete', fault: null });
    return made.result?.kind === 'store_unavailable' ? undefined : made;
  });
  if (!executed)
    expect(result).toEqual({ kind: 'executed', exchange: response, decision: 'complete', stored: true });
  else if (executed.end === 'complete')
    expect(result).toEqual({
      kind: 'replayed',
      response: (executed.response as { response: unknown }).response,
      requestId: executed.call.requestId,
    });
  else if (executed.end === 'oversize')
    expect(result).toEqual({ kind: 'tombstone', requestId: executed.call.requestId });
  else if (executed.end === 'never') expect(['in_flight', 'in_doubt']).toContain(result?.kind);
  // If the mark of doubt failed, the key is in doubt as soon as a lease has passed.
  else if (run.faults > 0) expect(['in_flight', 'in_doubt']).toContain(result?.kind);
  else expect(result).toMatchObject({ kind: 'in_doubt' });
}

describe.concurrent.each(await universes())('engines on $name', (universe) => {
  it('execute at most one request, whatever the calls and faults', {
    timeout: 30_000 + RUNS * 1000,
  }, async () => {
    const seen = new Set<string>();
    await fc.assert(
      fc.asyncProperty(plans, async (plan) => {
        const world = await universe.open();
        await using run = new EngineRun(world);
        for (const step of plan) await run.take(step);
        for (const made of run.made) checkResult(run, made);
        await checkEnd(run);
        for (const { result } of run.made) seen.add(result?.kind ?? 'under way');
      }),
      parameters,
    );
    for (const kind of ['executed', 'replayed', 'in_doubt', 'in_flight', 'store_unavailable', 'under way'])
      expect(seen).toContain(kind);
  });
});
