import type { Guard } from './guard.ts';

const DESK = 'src/doubts/desk.ts';
const CLOCK = 'src/lib/clock.ts';
const DUPLICATES = 'src/idempotency/duplicates.ts';
const ENGINE = 'src/idempotency/engine.ts';
const EXECUTION = 'src/idempotency/execution.ts';
const LEASE = 'src/idempotency/fence-and-lease.ts';
const LOOKUPS = 'src/doubts/lookups.ts';
const OUTCOME = 'src/idempotency/outcome.ts';

/** An owner that was paused sends nothing once its key may belong to another request. */
export const fenceGuards: readonly Guard[] = [
  [
    'the fence does not count the time in which the machine was suspended',
    [CLOCK, 'sinceMs', 'clock.wallMs() - wallMs', '0'],
    ['engine/fence', 'may not send once wallMs alone has passed a lease'],
  ],
  [
    'the fence does not count while the wall clock is set back',
    [CLOCK, 'sinceMs', 'clock.monotonicMs() - monotonicMs', '0'],
    ['engine/fence', 'may not send once monotonicMs alone has passed a lease'],
  ],
  [
    'the fence counts from the answer to the start',
    [EXECUTION, 'start', 'maySend, again', 'maySend: fenceFrom(this.#clock, this.#options.leaseMs), again'],
    ['engine/fence', 'may not send if its start took longer than the lease'],
  ],
  [
    'an owner that has asked whose the key is may send for longer than without asking',
    [EXECUTION, '#fenceIfOwner', 'isAlive() && maySend()', 'isAlive()'],
    ['engine/owner-question', 'may not send once others may take it for dead'],
  ],
  [
    'an owner that was paused while it connected sends a request whose key an operator has released',
    ['src/backend/executor.ts', 'onRequestStart', '!this.#rules.maySend()', 'false'],
    ['e2e/idempotency/paused-gateway', 'between its start and the first byte sends nothing once an operator'],
  ],
  [
    'a machine that was frozen with both its clocks sends a request whose key has another owner',
    [EXECUTION, '#fenceIfOwner', 'this.#clock.monotonicMs() - askedMs < aliveForMs', 'aliveForMs >= 0'],
    ['engine/owner-question', 'sends nothing when the key has another owner'],
  ],
  [
    'an operator resolves an execution that they have not looked at',
    [DESK, '', '!== executionOf(record)', '=== undefined'],
    ['e2e/records/admin-port', 'are not resolved if they belong to another execution'],
  ],
];

/** start → run → complete. */
export const engineGuards: readonly Guard[] = [
  [
    'a request is sent without a start',
    [EXECUTION, 'start', 'await this.#store.start(execution)', "{ kind: 'started' } as const"],
    ['engine/engine', 'is recorded as executing when it runs, and as completed when it is answered'],
  ],
  [
    'a request is sent although its start had no answer',
    [EXECUTION, 'start', "kind: 'store_unavailable'", "kind: 'started', execution, slot, maySend"],
    ['engine/store-faults', 'at the start, before the write, nothing runs'],
  ],
  [
    'a start that had no answer is not taken back',
    [EXECUTION, 'start', 'this.#takeBack(execution)', 'void execution'],
    ['engine/store-faults', 'at the start, after the write, nothing runs, and the key is soon free again'],
  ],
  [
    'a restart that had no answer is not taken back',
    [EXECUTION, 'restart', 'isMaybeWritten(cause)', 'false'],
    ['engine/void-tokens', 'a restart that arrives after it was taken back'],
  ],
  [
    'a closing engine sends what it has started',
    [ENGINE, '#lead', 'if (!this.#closing) result', 'if (lead) result'],
    ['engine/close', 'sends nothing for a call whose start is pending, and frees its key'],
  ],
  [
    'a request is started while no slot is free',
    [
      ENGINE,
      '#start',
      'this.#startLater(call, lead, isTrial)',
      'this.#executions.start(call, { release() {} })',
    ],
    ['engine/slots', 'a new key queues, and is not started before it has a slot'],
  ],
  [
    'a response is sent before it is stored',
    [EXECUTION, 'run', 'await completing.write()', "(void completing.write(), 'ok')"],
    ['engine/store-faults', 'before the complete is written, the response waits for the store'],
  ],
  [
    'a complete that fails is not repeated',
    [EXECUTION, '#repeatComplete', 'this.#repeat(write)', 'Promise.race([])'],
    ['engine/store-faults', 'and the key is completed when the store is back'],
  ],
  [
    'a running execution does not renew its lease',
    [LEASE, '#look', 'execution.dueMs <= nowMs', 'false'],
    [
      'simulation/scenarios',
      'renews its lease while it runs: a duplicate finds it in flight for longer than a lease',
    ],
  ],
  [
    'a closing engine does not wait for pending writes',
    [ENGINE, 'close', 'await this.#executions', 'void this.#executions'],
    ['engine/close', 'waits for a release that is repeated'],
  ],
  [
    'duplicates get a result that is not stored',
    [DUPLICATES, 'sharedBy', '!result.stored', 'false'],
    ['engine/duplicates', 'ask for themselves if the first one was not stored'],
  ],
  [
    'a duplicate gets the result of another request with its key',
    [DUPLICATES, 'tryLead', 'known?.fingerprint.equals(fingerprint)', 'known'],
    ['engine/duplicates', 'do not follow another request under their key'],
  ],
];

/** What the engine makes of how an execution has ended, and of a doubt. */
export const executionGuards: readonly Guard[] = [
  [
    'the key of a request that may have been sent is free again',
    [OUTCOME, 'decide', "return 'in_doubt'", "return 'release'"],
    ['engine/engine', 'a request that may have been sent: it is in doubt'],
  ],
  [
    'a request that broke within the gateway counts as not sent',
    [EXECUTION, 'brokenRun', "'unknown',", "'not_sent',"],
    ['engine/engine', 'a run that throws: it is in doubt'],
  ],
  [
    'a status of a proxy that gave up waiting is stored as the result',
    [OUTCOME, 'decide', 'unknown.includes(status)', 'false'],
    ['engine/engine', 'a 502: it is in doubt'],
  ],
  [
    'the status decides although another gateway behind this one does not know the outcome',
    [OUTCOME, 'decide', 'if (behind &&', 'if (false &&'],
    ['engine/engine', 'a 429 of another gateway that does not know the outcome: it is in doubt'],
  ],
  [
    "another gateway's own answer to a lookup frees the key",
    ['src/backend/lookup.ts', 'readAnswer', 'executedBehind(result.response)', 'false'],
    ['integration/upstream-lookup', 'answered by another gateway that did not send it is undecided'],
  ],
  [
    'an owner whose key has another result answers with its own response',
    [EXECUTION, 'run', "answer === 'stale'", 'false'],
    ['engine/store-faults', 'was completed by an operator, its owner answers what the store holds'],
  ],
  [
    'a second request that is told to wait for the first one completes the key',
    [OUTCOME, 'decideFor', 'NOT_OF_THE_FIRST.includes(statusOf(exchange))', 'false'],
    ['engine/retry', 'a second request that is told that the first one still runs leaves the key in doubt'],
  ],
  [
    'a key in doubt is executed again although its operation holds',
    [ENGINE, '#applyInDoubtPolicy', "policy === 'retry'", "policy !== 'lookup'"],
    ['engine/engine', 'a request that may have been sent: it is in doubt'],
  ],
  [
    'the policy of another operation decides about a key in doubt',
    [ENGINE, '#lead', 'found.operation === call.operation', 'true'],
    [
      'engine/retry',
      'a key in doubt of another operation is held, although this operation has inDoubt: lookup',
    ],
  ],
  [
    'a lookup frees a key at once that the backend does not know yet',
    [LOOKUPS, 'resolutionBy', '&& mayRelease', ''],
    ['engine/lookups', 'that the backend does not know is released after releaseAfterMs, and not before'],
  ],
];
