import type { Slots } from '../backend/slots.ts';
import type { DoubtLookups } from '../doubts/lookups.ts';
import type { Store } from '../ledger/ledger.ts';
import { type Clock, within } from '../lib/clock.ts';
import { InFlightCounter, UnorderedList } from '../lib/collections.ts';
import type { Slot } from '../lib/exchange.ts';
import { type Random, systemRandom } from '../lib/random.ts';
import type { Step } from '../lib/trace.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Call, EngineOptions, Result } from './call.ts';
import { CircuitBreaker } from './circuit-breaker.ts';
import { Duplicates, type Lead } from './duplicates.ts';
import { Executions, type Found, type Started } from './execution.ts';

const REFUSES = 'the store refuses writes';
const FIRST_POLL_MS = 25;
const LONGEST_POLL_MS = 250;

/**
 * Executes a request at most once for its key, and gives every request with that key the result of that execution. In one
 * process, one request with a key is the leader: it takes a slot and is executed (execution.ts). Its duplicates follow it
 * (duplicates.ts). The engine knows neither HTTP nor a database.
 */
export class Engine {
  readonly #store: Store;
  readonly #slots: Slots;
  readonly #options: EngineOptions;
  readonly #clock: Clock;
  readonly #lookups: DoubtLookups | undefined;
  readonly #executions: Executions;
  readonly #breaker: CircuitBreaker;
  readonly #duplicates: Duplicates;
  readonly #handling = new InFlightCounter();
  /** Functions that interrupt the waits of leaders. */
  readonly #waits = new UnorderedList<() => void>();
  #polling = 0;
  #closing = false;

  constructor(
    store: Store,
    slots: Slots,
    options: EngineOptions,
    emit: Emit,
    clock: Clock,
    lookups?: DoubtLookups,
    random: Random = systemRandom,
  ) {
    this.#store = store;
    this.#slots = slots;
    this.#options = options;
    this.#clock = clock;
    this.#lookups = lookups;
    this.#breaker = new CircuitBreaker(clock);
    this.#duplicates = new Duplicates(clock);
    this.#executions = new Executions(store, options, emit, clock, random, this.#breaker, lookups);
  }

  /** Duplicates that wait for another request's result. */
  get waiting(): number {
    return this.#duplicates.following + this.#polling;
  }

  get executing(): number {
    return this.#executions.running;
  }

  /** Writes that are repeated because the store has not answered. */
  get pendingWrites(): number {
    return this.#executions.pendingWrites;
  }

  /** The store refuses writes. Requests with a key are answered from reads where that is possible. */
  get storeRefuses(): boolean {
    return this.#store.refusing !== undefined || this.#breaker.isOpen;
  }

  /** The result of a request with a key. A failure of the store or the backend is a result too, not an exception. */
  handle(call: Call): Promise<Result> {
    const waitUntilMs = this.#clock.monotonicMs() + call.waitMs;
    const lead = this.#duplicates.tryLead(call);
    return lead ? this.#lead(call, lead, waitUntilMs) : this.#follow(call, waitUntilMs);
  }

  /** Starts nothing new, and resolves when all calls have their results, at most after `ms`. */
  async drain(ms: number): Promise<void> {
    this.#closing = true;
    this.#duplicates.endAll({ kind: 'closing' });
    for (const end of this.#waits.values()) end();
    await within(this.#clock, this.#handling.idle(), ms);
  }

  /** Drains, and waits for pending writes, at most `ms` in all. Gives up the writes that are pending then. */
  async close(ms: number): Promise<void> {
    const startedMs = this.#clock.monotonicMs();
    await this.drain(ms);
    await this.#executions.close(Math.max(0, ms - (this.#clock.monotonicMs() - startedMs)));
  }

  /** Waits for the leader of this key: its result, or the call becomes the leader. */
  async #follow(call: Call, waitUntilMs: number): Promise<Result> {
    this.#handling.begin();
    try {
      if (this.#closing) return { kind: 'closing' };
      const startedMs = this.#clock.monotonicMs();
      const step = call.spans?.begin('wait');
      const followed = await this.#duplicates.follow(call, this.#mayWait() ? call.waitMs : 0);
      step?.end('kind' in followed ? followed.kind : 'lead');
      call.waited?.(this.#clock.monotonicMs() - startedMs);
      return 'kind' in followed ? followed : await this.#lead(call, followed, waitUntilMs);
    } finally {
      this.#handling.end();
    }
  }

  /** Starts and runs the call, or finds out what became of the earlier request that has its key. */
  async #lead(call: Call, lead: Lead, waitUntilMs: number): Promise<Result> {
    this.#handling.begin();
    let result: Result | undefined;
    let waiting: Step | undefined;
    try {
      let found: Found = await this.#start(call, lead);
      for (let pollMs = FIRST_POLL_MS; !result; pollMs = Math.min(pollMs * 1.5, LONGEST_POLL_MS)) {
        if (waiting && found.kind !== 'in_flight') {
          waiting.end(found.kind);
          waiting = undefined;
        }
        switch (found.kind) {
          case 'started':
            lead.setInFlight();
            if (!this.#closing) result = await this.#executions.run(call, found);
            else {
              this.#executions.takeBack(found);
              result = { kind: 'closing' };
            }
            break;
          case 'absent':
            // The owner in another process has released the key.
            found = call.gone?.aborted ? { kind: 'in_flight' } : await this.#start(call, lead);
            break;
          case 'in_flight':
            lead.setInFlight();
            if (!this.#closing) waiting ??= call.spans?.begin('wait');
            if (this.#closing) result = { kind: 'closing' };
            else if (await this.#waitToPoll(call, pollMs, waitUntilMs)) {
              lead.asks();
              found = await this.#executions.peek(call, { isPoll: true });
            } else result = found;
            break;
          case 'in_doubt': {
            // A retry that was identified as another operation is held: neither operation's policy may send it.
            const policy = found.operation === call.operation ? call.inDoubt : 'hold';
            const next = await this.#applyInDoubtPolicy(call, lead, policy, waitUntilMs);
            if (next) found = next;
            else result = { kind: 'in_doubt', sinceMs: found.sinceMs, requestId: found.requestId };
            break;
          }
          case 'completed':
            result = { kind: 'replayed', response: found.response, requestId: found.requestId };
            break;
          default:
            result = found;
        }
      }
      return result;
    } finally {
      waiting?.end('in_flight');
      this.#duplicates.handOver(call, lead, result);
      this.#handling.end();
    }
  }

  /** Takes a slot before it starts, so that the request is sent as soon as its record is durable. */
  #start(call: Call, lead: Lead): Promise<Found> {
    if (this.#closing) return Promise.resolve<Found>({ kind: 'closing' });
    lead.asks();
    const { refusing } = this.#store;
    const isTrial = this.#breaker.isOpen;
    if (refusing !== undefined || !this.#breaker.admits())
      return this.#executions.readInstead(call, refusing ?? REFUSES);
    const free = lead.ticket ? undefined : this.#slots.tryTake();
    return free ? this.#executions.start(call, free) : this.#startLater(call, lead, isTrial);
  }

  /** Queues for a slot, then starts. `isTrial`: the open circuit breaker has admitted this request to try the store. */
  async #startLater(call: Call, lead: Lead, isTrial: boolean): Promise<Found> {
    const slot = await this.#slotFor(call, lead, true);
    if ('kind' in slot) {
      this.#breaker.notTried();
      return slot;
    }
    if (isTrial || !this.#breaker.isOpen) return await this.#executions.start(call, slot);
    // The circuit breaker has opened while this request was queued.
    slot.release();
    return await this.#executions.readInstead(call, REFUSES);
  }

  /** Takes a slot, and restarts a key in doubt. */
  async #restart(call: Call, lead: Lead): Promise<Found> {
    if (this.#closing) return { kind: 'closing' };
    const { refusing } = this.#store;
    if (refusing !== undefined) return { kind: 'store_unavailable', cause: refusing };
    const slot = await this.#slotFor(call, lead, false);
    return 'kind' in slot ? slot : await this.#executions.restart(call, slot);
  }

  /** Applies the policy for keys in doubt. Resolves to what the record means then, unless the key stays in doubt. */
  async #applyInDoubtPolicy(
    call: Call,
    lead: Lead,
    policy: Call['inDoubt'],
    waitUntilMs: number,
  ): Promise<Found | undefined> {
    if (policy === 'retry') return await this.#restart(call, lead);
    if (policy === 'hold' || !this.#lookups) return undefined;
    lead.setInFlight();
    const startedMs = this.#clock.monotonicMs();
    const step = call.spans?.begin('lookup');
    const changed = await this.#wait(this.#lookups.lookUpNow(call), waitUntilMs - startedMs, call.gone);
    step?.end(changed ? 'changed' : 'unknown');
    call.waited?.(this.#clock.monotonicMs() - startedMs);
    // Another gateway may have completed the key meanwhile.
    lead.asks();
    const found = await this.#executions.peek(call);
    return changed || found.kind !== 'in_doubt' ? found : undefined;
  }

  /**
   * Takes a slot, or queues for one. Before it queues it reads the record, so that replays and duplicates need no slot.
   *
   * @param peek false if the record is known already
   */
  async #slotFor(call: Call, lead: Lead, peek: boolean): Promise<Slot | Exclude<Found, Started>> {
    if (!lead.ticket) {
      const free = this.#slots.tryTake();
      if (free) return free;
      const found = peek ? await this.#executions.peek(call) : undefined;
      if (found && found.kind !== 'absent') return found;
      lead.ticket = this.#slots.queue();
      if (!lead.ticket) return { kind: 'overloaded' };
    }
    lead.setInFlight();
    const step = call.spans?.begin('queue');
    const slot = await this.#wait(lead.ticket.slot, this.#slots.queueTimeoutMs, call.gone);
    step?.end(slot ? 'slot' : 'overloaded');
    if (this.#closing) return { kind: 'closing' };
    // The lead keeps its ticket, because the next duplicate takes it over.
    if (!slot || call.gone?.aborted) return { kind: 'overloaded' };
    lead.ticket = undefined;
    return slot;
  }

  /** Waits between two reads of a record that another process executes. Resolves to false if the call must not wait any longer. */
  async #waitToPoll(call: Call, pollMs: number, waitUntilMs: number): Promise<boolean> {
    const startedMs = this.#clock.monotonicMs();
    const leftMs = waitUntilMs - startedMs;
    if (leftMs <= 0 || call.gone?.aborted || !this.#mayWait()) return false;
    this.#polling++;
    await this.#wait(undefined, Math.min(pollMs, leftMs), call.gone);
    this.#polling--;
    call.waited?.(this.#clock.monotonicMs() - startedMs);
    return !call.gone?.aborted;
  }

  #mayWait(): boolean {
    return this.waiting < this.#options.maxWaiters;
  }

  /** The result of `work`; undefined after `ms`, when the merchant leaves, or when the engine closes. */
  async #wait<T>(
    work: Promise<T> | undefined,
    ms: number,
    gone: AbortSignal | undefined,
  ): Promise<T | undefined> {
    return ms > 0 && !this.#closing ? await within(this.#clock, work, ms, gone, this.#waits) : undefined;
  }
}
