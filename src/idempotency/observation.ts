import type { Store } from '../ledger/ledger.ts';
import { newExecution } from '../ledger/record-id.ts';
import { type Clock, within } from '../lib/clock.ts';
import { InFlightCounter } from '../lib/collections.ts';
import type { Exchange } from '../lib/exchange.ts';
import { type Random, systemRandom } from '../lib/random.ts';
import type { Execution, StartAnswer, Written } from '../store/types.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Would } from '../telemetry/label-values.ts';
import type { Call } from './call.ts';
import { Renewals } from './fence-and-lease.ts';
import { type Decision, decide, statusOf } from './outcome.ts';
import { PendingWrites } from './pending-writes.ts';

/** One request with an idempotency key that is sent in any case. */
export type ObservedCall = Omit<Execution, 'token'> & Pick<Call, 'statuses' | 'inDoubt'>;

export interface ObservationOptions {
  leaseMs: number;
  /** Requests that are observed at once. One more is sent and not observed. */
  mostOpen: number;
}

/** How a request ended. `status`: of the backend's response; 0 if there was none. */
interface Ending {
  decision: Decision;
  status: number;
}

/** A result that the store does not take is offered again for this long. */
const REPEAT_FOR_MS = 30_000;

/**
 * `mode: observe`: writes what `mode: protect` would have written, beside requests that are sent in any case. Nothing waits
 * for the store. A record is completed without its response: a request that was not held back may have been executed several
 * times, so there is no response that could be replayed to its key later (ADR 27).
 */
export class Observation {
  readonly #store: Store;
  readonly #options: ObservationOptions;
  readonly #emit: Emit;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #renewals: Renewals;
  readonly #pending: PendingWrites;
  readonly #open = new InFlightCounter();

  constructor(
    store: Store,
    options: ObservationOptions,
    emit: Emit,
    clock: Clock,
    random: Random = systemRandom,
  ) {
    this.#store = store;
    this.#options = options;
    this.#emit = emit;
    this.#clock = clock;
    this.#random = random;
    this.#renewals = new Renewals({ store, leaseMs: options.leaseMs, emit, clock });
    this.#pending = new PendingWrites(clock);
  }

  /**
   * Call it right before the request is sent, and the function that it returns with how that ended. Neither throws.
   *
   * @param told called when it is known what would have been done
   */
  begin(call: ObservedCall, told: (would: Would) => void): (exchange: Exchange) => void {
    if (this.#open.count >= this.#options.mostOpen) {
      this.#emit('unobserved', { operation: call.operation, reason: 'too_many' });
      return () => {};
    }
    const { promise, resolve } = Promise.withResolvers<Ending>();
    this.#open.begin();
    void this.#observe(call, promise, told).finally(() => this.#open.end());
    // Keeps nothing of the response: while the store does not answer, its body would stay in memory.
    return (exchange) => resolve({ decision: decide(exchange, call.statuses), status: statusOf(exchange) });
  }

  /** Waits for open observations, at most `ms`. */
  async close(ms: number): Promise<void> {
    await Promise.all([this.#pending.close(ms), within(this.#clock, this.#open.idle(), ms)]);
    this.#renewals.close();
  }

  async #observe(call: ObservedCall, ending: Promise<Ending>, told: (would: Would) => void): Promise<void> {
    const execution = newExecution(call, this.#random.token());
    let answer: StartAnswer;
    try {
      answer = await this.#store.start(execution);
    } catch {
      // If the start was written after all, the key is soon in doubt. That is right: nothing stores how the request ends.
      this.#emit('unobserved', { operation: call.operation, reason: 'store' });
      return;
    }
    const would = wouldOf(answer, call);
    this.#emit('observed', { operation: call.operation, would });
    told(would);
    if (answer.kind !== 'started') return;
    const stopRenewing = this.#renewals.keep(call, execution);
    const ended = await ending;
    const write = () => this.#write(execution, ended);
    await write().catch(() => this.#pending.add(write, REPEAT_FOR_MS));
    stopRenewing();
  }

  #write(execution: Execution, { decision, status }: Ending): Promise<Written> {
    switch (decision) {
      case 'release':
        return this.#store.release(execution);
      case 'in_doubt':
        return this.#store.leaveInDoubt(execution);
      case 'complete':
        return this.#store.complete(execution, { kind: 'tombstone', status });
    }
  }
}

function wouldOf(answer: StartAnswer, { operation, inDoubt }: ObservedCall): Would {
  switch (answer.kind) {
    case 'started':
      return 'executed';
    case 'in_flight':
      return 'waited';
    case 'completed':
    case 'tombstone':
      return 'replayed';
    case 'mismatch':
      return 'mismatch';
    case 'in_doubt':
      return inDoubt === 'retry' && answer.operation === operation ? 'sent_again' : 'in_doubt';
  }
}
