import type { Guard } from '../guards.ts';

const unit = (name: string) => `test/unit/${name}.test.ts`;
const engine = (name: string) => `test/engine/${name}.test.ts`;
const FAULTS = engine('store-faults');
const RETRY = engine('retry');
const SLOTS = engine('slots');
const SLOT_RELEASE = engine('slot-release');
const VOID_TOKENS = engine('void-tokens');
const ENGINE = { file: 'src/idempotency/engine.ts', test: engine('engine') };
const EXECUTION = { file: 'src/idempotency/execution.ts', test: engine('engine') };
const WRITER = { file: 'src/idempotency/record-writer.ts', test: FAULTS };
const OUTCOME = { file: 'src/idempotency/outcome.ts', test: engine('engine') };
const DUPLICATES = { file: 'src/idempotency/duplicates.ts', test: engine('duplicates') };
const LOOKUPS = { file: 'src/doubts/lookups.ts', test: engine('lookups') };
const OPTIONS = { file: 'src/idempotency/options.ts', test: unit('config-policies') };

const COMPLETE = 'stored = await write();';

/** start → run → complete. */
export const engineGuards: readonly Guard[] = [
  {
    ...EXECUTION,
    without: 'a request is sent before its start is answered',
    text: 'const answer = await this.#store.start(execution);',
    replacement: `void this.#store.start(execution);
      const answer = { kind: 'started' } as Awaited<ReturnType<Store['start']>>;`,
    named: 'is recorded as executing when it runs, and as completed when it is answered',
  },
  {
    ...EXECUTION,
    without: 'a request is sent although the start had no answer',
    text: `      this.#writer.takeBack(execution);
      return { kind: 'store_unavailable', cause };`,
    replacement: "      return { kind: 'started', execution, slot, maySend, again: false };",
    test: FAULTS,
    named: 'at the start, before the write, nothing runs',
  },
  {
    ...EXECUTION,
    without: 'a start that had no answer is not taken back',
    text: `      this.#writer.takeBack(execution);
      return { kind: 'store_unavailable', cause };`,
    replacement: "      return { kind: 'store_unavailable', cause };",
    test: FAULTS,
    named: 'at the start, after the write, nothing runs, and the key is soon free again',
  },
  {
    ...WRITER,
    without: 'a start that was taken back can still arrive',
    text: 'this.#store.release(owner, { voidToken: true })',
    replacement: 'this.#store.release(owner)',
    test: VOID_TOKENS,
    named: 'a start that arrives after it was taken back starts nothing',
  },
  {
    ...EXECUTION,
    without: 'a request is sent again although the restart had no answer',
    text: 'if (isMaybeWritten(cause)) this.#writer.takeBackRestart(execution);',
    replacement: "if (cause) return { kind: 'started', execution, slot, maySend, again: true };",
    test: VOID_TOKENS,
    named: 'a restart whose answer was lost sends nothing',
  },
  {
    ...EXECUTION,
    without: 'a restart that had no answer is not taken back',
    text: 'if (isMaybeWritten(cause)) this.#writer.takeBackRestart(execution);',
    replacement: '',
    test: VOID_TOKENS,
    named: 'a restart that arrives after it was taken back',
  },
  {
    ...WRITER,
    without: 'a restart that was taken back can still arrive',
    text: 'this.#store.markInDoubt(owner, { voidToken: true })',
    replacement: 'this.#store.markInDoubt(owner)',
    test: VOID_TOKENS,
    named: 'a restart that arrives after it was taken back',
  },
  {
    ...WRITER,
    without: 'a restart that is taken back frees a key in doubt',
    text: 'this.#store.markInDoubt(owner, { voidToken: true })',
    replacement: 'this.#store.release(owner, { voidToken: true })',
    test: VOID_TOKENS,
    named: 'a restart whose answer was lost sends nothing, and the key is in doubt again',
  },
  {
    ...ENGINE,
    without: 'a closing engine sends what it has started',
    text: 'if (!this.#closing) result = await this.#executions.run(call, found);',
    replacement: 'if (this.#slots.queueTimeoutMs >= 0) result = await this.#executions.run(call, found);',
    test: engine('close'),
    named: 'sends nothing for a call whose start is pending, and frees its key',
  },
  {
    ...EXECUTION,
    without: 'a closing engine frees a key in doubt that it has restarted',
    text: `    if (again) this.#writer.takeBackRestart(execution);
    else this.#writer.takeBack(execution);`,
    replacement: '    this.#writer.takeBack(execution);',
    test: RETRY,
    named: 'a restart that is pending when the engine closes releases nothing',
  },
  {
    ...ENGINE,
    without: 'a request is started while no slot is free',
    text: 'return free ? this.#executions.start(call, free) : this.#startLater(call, lead, isTrial);',
    replacement: `const slot = free ?? { release() {} };
    return isTrial ? this.#startLater(call, lead, isTrial) : this.#executions.start(call, slot);`,
    test: SLOTS,
    named: 'a new key queues, and is not started before it has a slot',
  },
  {
    ...ENGINE,
    without: 'a replay needs a slot',
    text: 'const found = peek ? await this.#executions.peek(call) : undefined;',
    replacement: 'const found = peek ? undefined : await this.#executions.peek(call);',
    test: SLOTS,
    named: 'replays, conflicts, keys in doubt and duplicates are answered from a read',
  },
  {
    ...EXECUTION,
    without: 'a slot is kept while the result is stored',
    text: 'releaseAfter(slot, exchange);',
    replacement: 'void this.#running.idle().then(() => releaseAfter(slot, exchange));',
    test: SLOT_RELEASE,
    named: 'the slot of a request > is back before the result is completed',
  },
  {
    ...EXECUTION,
    without: 'a request that is not started keeps its slot',
    text: `      slot.release();
      this.#gate.notTried();
      return answer;`,
    replacement: '      return answer;',
    test: SLOT_RELEASE,
    named: 'the slot of a request > is back after every answer of the store except started',
  },
  {
    ...EXECUTION,
    without: 'a start that fails keeps its slot',
    text: `      slot.release();
      if (cause instanceof UnreadableRecord) this.#gate.notTried();`,
    replacement: '      if (cause instanceof UnreadableRecord) this.#gate.notTried();',
    test: SLOT_RELEASE,
    named: 'the slot of a request > is back after every answer of the store except started',
  },
  {
    ...EXECUTION,
    without: 'a restart that fails keeps its slot',
    text: `      slot.release();
      if (isMaybeWritten(cause)) this.#writer.takeBackRestart(execution);`,
    replacement: '      if (isMaybeWritten(cause)) this.#writer.takeBackRestart(execution);',
    test: SLOT_RELEASE,
    named: 'the slot of a request > is back after a restart that was lost',
  },
  {
    ...ENGINE,
    without: 'a store that is frozen holds all slots',
    text: 'if (refusing !== undefined || !this.#gate.admits())',
    replacement: 'if (refusing !== undefined)',
    test: engine('write-gate'),
    named: 'does not hold the slots: all but one of four are free while starts have no answer',
  },
  {
    file: 'src/backend/slots.ts',
    without: 'a slot that is released twice counts twice',
    text: 'if (released) return;',
    replacement: '',
    test: unit('slots'),
    named: 'are free once, even if they are released twice',
  },
  {
    file: 'src/backend/slots.ts',
    without: 'a place that is given up keeps the slot that it was assigned',
    text: 'else void promise.then((slot) => slot.release());',
    replacement: '',
    test: unit('slots'),
    named: 'skip a queued request that gave up, and are released by one that gives up with a slot',
  },
  {
    ...EXECUTION,
    without: 'a response is sent before it is stored',
    text: COMPLETE,
    replacement: `void write();
          stored = 'ok';`,
    named: 'is recorded as executing when it runs, and as completed when it is answered',
  },
  {
    ...WRITER,
    without: 'a response does not wait for a store that fails for a moment',
    text: 'const answer = await within(repeated, this.#options.completeRetryMs);',
    replacement: 'const answer = await within(repeated, 0);',
    named: 'for a moment, before the complete is written, the response waits for the store',
  },
  {
    ...WRITER,
    without: 'a complete that fails is not repeated',
    text: 'const repeated = this.#pending.add(write, this.#options.inDoubtRetentionMs);',
    replacement: `const repeated = new Promise<Fenced | undefined>((resolve) => {
      setTimeout(resolve, this.#options.completeRetryMs);
    });`,
    named:
      'for long, the merchant gets the response, no retry runs, and the key is completed when the store is back',
  },
  {
    file: 'src/idempotency/pending-writes.ts',
    without: 'a write that the store does not answer is given up after one attempt',
    text: 'if (!isFinal && this.#clock.monotonicMs() < pending.untilMs) return pending;',
    replacement: '',
    test: FAULTS,
    named: 'at the start, the start is taken back as soon as the store answers again',
  },
  {
    ...EXECUTION,
    without: 'a lease is not renewed until the complete is answered',
    text: COMPLETE,
    replacement: `stopRenewing();
        ${COMPLETE}`,
    test: FAULTS,
    named:
      'for long, the merchant gets the response, no retry runs, and the key is completed when the store is back',
  },
  {
    file: 'src/idempotency/lease.ts',
    without: 'a running execution does not renew its lease',
    text: 'if (execution.dueMs <= nowMs) void this.#renew(execution);',
    replacement: 'if (execution.dueMs < 0) void this.#renew(execution);',
    test: engine('owners'),
    named: 'renews its lease while it runs: a duplicate finds it in flight for longer than a lease',
  },
  {
    ...EXECUTION,
    without: 'an owner whose complete is stale answers with its own response',
    text: "if (answer === 'stale') return await this.#superseded(call, exchange);",
    replacement: '',
    test: FAULTS,
    named: 'and an operator has completed the key meanwhile, the late result is refused and reported',
  },
  {
    ...OUTCOME,
    without: 'a request whose outcome is unknown is released',
    text: "if (exchange.kind === 'unknown' || exchange.said === 'unknown') return 'in_doubt';",
    replacement: "if (exchange.kind === 'unknown') return 'release';",
    named: 'a request that may have been sent leaves the key in doubt: no retry runs',
  },
  {
    ...EXECUTION,
    without: 'a request that broke within the gateway counts as not sent',
    text: 'exchange = brokenRun(error);',
    replacement: "exchange = { kind: 'not_sent', reason: brokenRun(error).kind };",
    named: 'a run that throws leaves the key in doubt: no retry runs',
  },
  {
    ...OUTCOME,
    without: 'a status of a proxy that gave up waiting is stored as the result',
    text: "return unknown.includes(status) ? 'in_doubt' : 'complete';",
    replacement: "return 'complete';",
    named: 'a 502 is passed on, and the key is in doubt',
  },
  {
    ...OPTIONS,
    without: 'a 503 of a proxy, or a status of a CDN, is a result by default',
    text: 'const UNKNOWN = [502, 503, 504, 520, 522, 524];',
    replacement: 'const UNKNOWN = [502, 504];',
    named: 'an in-doubt policy > is the safest one by default',
  },
  {
    ...OPTIONS,
    without: 'a 403 of a firewall that inspects responses frees the key by default',
    text: '.default([401, 429])',
    replacement: '.default([401, 403, 429])',
    named: 'an in-doubt policy > is the safest one by default',
  },
  {
    ...OUTCOME,
    without: 'the status decides although another gateway behind this one does not know the outcome',
    text: "if (behind && !(behind === 'no' && exchange.said)) return BEHIND[behind];",
    replacement: "if (behind === 'no') return 'release';",
    named: 'a 429 of another gateway that does not know the outcome is passed on, and the key is in doubt',
  },
  {
    file: 'src/lib/problem.ts',
    without: 'a problem code that this version does not know counts as a status',
    text: ": 'perhaps';",
    replacement: ': undefined;',
    test: engine('engine'),
    named: 'an answer of a later gateway that this one does not know is passed on, and the key is in doubt',
  },
  {
    file: 'src/backend/lookup.ts',
    without: "another gateway's own answer to a lookup frees the key",
    text: "if (result.kind === 'complete' && executedBehind(result.response)) return { kind: 'undecided', said };",
    replacement: '',
    test: 'test/integration/upstream-lookup.test.ts',
    named: 'answered by another gateway that did not send it is undecided, whatever the status',
  },
  {
    ...OPTIONS,
    without: 'a key in doubt is executed again by default',
    text: "inDoubt: z.enum(['hold', 'retry', 'lookup']).default('hold'),",
    replacement: "inDoubt: z.enum(['hold', 'retry', 'lookup']).default('retry'),",
    named: 'an in-doubt policy > is the safest one by default',
  },
  {
    ...OPTIONS,
    without: 'a lookup with a mistyped path frees keys by default',
    text: 'released: statuses.default([]),',
    replacement: 'released: statuses.default([404]),',
    named: 'has defaults for all of a lookup but its path',
  },
  {
    ...EXECUTION,
    without: 'a second request that was not executed frees a key in doubt',
    text: "return decision === 'release' || STILL_RUNS.includes(statusOf(exchange)) ? 'in_doubt' : decision;",
    replacement: "return STILL_RUNS.includes(statusOf(exchange)) ? 'in_doubt' : decision;",
    test: RETRY,
    named: 'a second request that was not sent leaves the key in doubt',
  },
  {
    ...EXECUTION,
    without: 'a second request that is told to wait for the first one completes the key',
    text: "return decision === 'release' || STILL_RUNS.includes(statusOf(exchange)) ? 'in_doubt' : decision;",
    replacement: "return decision === 'release' ? 'in_doubt' : decision;",
    test: RETRY,
    named: 'a second request that is told that the first one still runs leaves the key in doubt',
  },
  {
    ...ENGINE,
    without: 'a key in doubt is executed again although its operation holds',
    text: "if (policy === 'retry') return await this.#restart(call, lead);",
    replacement: "if (policy !== 'lookup') return await this.#restart(call, lead);",
    test: RETRY,
    named: 'a key in doubt is not executed again by an operation with inDoubt: hold',
  },
  {
    ...ENGINE,
    without: 'the policy of another operation decides about a key in doubt',
    text: "const policy = found.operation === call.operation ? call.inDoubt : 'hold';",
    replacement: 'const policy = call.inDoubt;',
    test: RETRY,
    named: 'a key in doubt of another operation is held, although this operation has inDoubt: retry',
  },
  {
    ...DUPLICATES,
    without: 'duplicates get a result that is not stored',
    text: 'if (!result.stored) return undefined;',
    replacement: '',
    named: 'ask for themselves if the first one was not stored',
  },
  {
    ...DUPLICATES,
    without: 'a duplicate gets the result of another request under its key',
    text: 'if (known?.fingerprint.equals(fingerprint)) return undefined;',
    replacement: 'if (known) return undefined;',
    named: 'do not follow another request under their key',
  },
  {
    ...ENGINE,
    without: 'a closing engine does not wait for pending writes',
    text: 'await this.#executions.close(Math.max(0, ms - (this.#clock.monotonicMs() - startedMs)));',
    replacement: 'void this.#executions.close(Math.max(0, ms - (this.#clock.monotonicMs() - startedMs)));',
    test: engine('close'),
    named: 'waits for a release that is repeated',
  },
  {
    ...LOOKUPS,
    without: 'a lookup frees a key at once that the backend does not know yet',
    text: "return answer.kind === 'not_executed' && oldEnough ?",
    replacement: "return answer.kind === 'not_executed' && oldEnough !== undefined ?",
    named: 'that the backend does not know is released after releaseAfterMs, and not before',
  },
  {
    ...LOOKUPS,
    without: 'a lookup of one execution releases the next one, which an operator has made possible meanwhile',
    text: 'resolve(doubt.scope, record.token, resolution, note)',
    replacement:
      'resolve(doubt.scope, (await this.#store.get(doubt.scope))?.token ?? record.token, resolution, note)',
    named: 'that an operator releases first is not released by the other one',
  },
  {
    ...LOOKUPS,
    without: 'a lookup counts the age of another execution of the key',
    text: 'if (!doubt.token?.equals(token)) doubt.metMs = this.#clock.monotonicMs();',
    replacement: '',
    named: 'that is in doubt again under another token counts its age from that moment',
  },
];
