import { type Clock, systemClock } from '../lib/clock.ts';
import type { Completion } from '../lib/exchange.ts';
import type { Random } from '../lib/random.ts';
import { systemRandom } from '../lib/random.ts';
import {
  type Create,
  KeyLocked,
  type Register,
  type Replace,
  type SqlClient,
  type Transaction,
  type TransactionOptions,
  type Transactions,
} from '../store/register.ts';
import type { ResponseCipher } from '../store/response-cipher.ts';
import { type Execution, type KeyRecord, type RecordDefaults, StoreClosed } from '../store/types.ts';
import * as rules from './rules.ts';

/** An execution whose record an open transaction has written. */
export interface Claim {
  execution: Execution;
  record: KeyRecord;
}

export interface CommitsOptions extends RecordDefaults {
  cipher: ResponseCipher;
  clock?: Clock;
  random?: Random;
}

/**
 * Applies the event `commit`: the record of a key is written in the transaction of the application that executes the request. The
 * transaction first inserts it, so that every other request with the key waits for its end, and completes it last. Without the
 * transaction's commit neither the record nor the application's statements are there, so no crash leaves a doubt.
 */
export class Commits {
  readonly #register: Register;
  readonly #own: RecordDefaults;
  readonly #cipher: ResponseCipher;
  readonly #clock: Clock;
  readonly #random: Random;
  /** As the ledger's. */
  #closed: StoreClosed | undefined;

  /** @returns undefined if the register's records cannot be in the database of an application */
  static on(register: Register, options: CommitsOptions): Commits | undefined {
    return register.transactions || register.commit ? new Commits(register, options) : undefined;
  }

  private constructor(register: Register, options: CommitsOptions) {
    const { gatewayId, lifetimes, cipher, clock = systemClock, random = systemRandom } = options;
    this.#register = register;
    this.#own = { gatewayId, lifetimes };
    this.#cipher = cipher;
    this.#clock = clock;
    this.#random = random;
  }

  /** Whether a transaction is one synchronous function, on the application's own connection: see {@link commitAtOnce}. */
  get isSynchronous(): boolean {
    return this.#register.commit !== undefined;
  }

  /** @throws {StoreUnavailable} not written */
  begin(options: TransactionOptions): Promise<Transaction> {
    return this.#transactions.begin(options);
  }

  /**
   * Writes what a start would write, in the transaction of the client. Each transaction needs an execution with a token of its own.
   *
   * @returns undefined if a record is there: `peek` says what it means
   * @throws as {@link Transactions.claim}
   */
  async claim(client: SqlClient, execution: Execution): Promise<Claim | undefined> {
    if (this.#closed) throw this.#closed;
    const { write } = rules.start(undefined, execution, this.#own, this.#stamp());
    const create = write as Create;
    try {
      const isClaimed = await this.#transactions.claim(client, execution.recordId, create);
      return isClaimed ? { execution, record: create.record } : undefined;
    } catch (error) {
      if (error instanceof StoreClosed) this.#closed = error;
      throw error;
    }
  }

  /**
   * Nothing → completed, as soon as the transaction of the client is committed.
   *
   * @param wasTold as for a complete
   * @throws as {@link Transactions.complete}
   */
  async complete(client: SqlClient, claim: Claim, completion: Completion, wasTold: boolean): Promise<void> {
    const { execution, record } = claim;
    const stored = this.#cipher.encrypt(execution.recordId, completion);
    const { write } = rules.commit(undefined, execution, stored, wasTold, this.#own, this.#stamp());
    await this.#transactions.complete(client, execution.recordId, record.revision, write as Replace);
  }

  /**
   * A whole transaction: claims the key, and executes and completes it.
   *
   * @param work executes the request, on the application's connection. Without a completion only the claim is committed, and what it has done
   * @param wasTold as for a complete. Asked in the transaction, whose beginning may take so long that the merchant is answered meanwhile
   * @param begun gets the claim when it is in the transaction
   * @returns false if a record is there: `peek` says what it means
   * @throws what `work` throws
   * @throws {StoreUnavailable}
   */
  async commitAtOnce(
    execution: Execution,
    work: (client: unknown) => Completion | undefined,
    wasTold: () => boolean,
    begun: (claim: Claim) => void,
  ): Promise<boolean> {
    if (this.#closed) throw this.#closed;
    const { recordId } = execution;
    const create = rules.start(undefined, execution, this.#own, this.#stamp()).write as Create;
    const { record } = create;
    const executed = (client: unknown): Replace | undefined => {
      begun({ execution, record });
      const completion = work(client);
      if (!completion) return undefined;
      const sealed = this.#cipher.encrypt(recordId, completion);
      const { write } = rules.commit(undefined, execution, sealed, wasTold(), this.#own, this.#stamp());
      return { ...(write as Replace), revision: record.revision };
    };
    try {
      return (await this.#register.commit?.(recordId, create, executed))?.done === true;
    } catch (error) {
      if (error instanceof StoreClosed) this.#closed = error;
      throw error;
    }
  }

  /**
   * What became of a claim. `incomplete`: the transaction was committed without its completion. Durable.
   *
   * @param isOver its transaction has surely ended. Otherwise asks with a write, which waits for it: voids its token
   * @throws {StoreUnavailable} the transaction has not ended, or the store does not answer
   */
  async outcomeOf(
    { execution }: Pick<Claim, 'execution'>,
    isOver: boolean,
  ): Promise<'committed' | 'incomplete' | 'free'> {
    const { recordId, token } = execution;
    let held = await this.#register.read(recordId, true);
    if (!held && !isOver) {
      // No record has this revision, so nothing else is written.
      const nothing = { record: undefined, operation: '', expiresInMs: 0, voidToken: token } as const;
      const revision = this.#random.token();
      const reply = await this.#register.replace(recordId, { kind: 'replace', revision, ...nothing });
      held = reply.done ? undefined : reply.held;
    }
    if (!held?.record.token.equals(token)) return 'free';
    return held.record.state === 'completed' ? 'committed' : 'incomplete';
  }

  get #transactions(): Transactions {
    const { transactions } = this.#register;
    if (transactions) return transactions;
    throw new TypeError('idempotency: startIn and completeIn need the store of postgresStore');
  }

  #stamp = () => ({ revision: this.#random.token(), wallMs: this.#clock.wallMs() });
}

/** A serialization failure, and a deadlock. */
const REPEATABLE: ReadonlySet<unknown> = new Set(['40001', '40P01']);

/** Whether a transaction that failed so may be run again. Libraries wrap the error of the server. */
export function isRepeatable(error: unknown): boolean {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: unknown };
  return REPEATABLE.has(code) || (cause !== undefined && isRepeatable(cause));
}

/** Prisma's own codes, such as P1008 for its time limit, look alike. Of these classes PostgreSQL has P0 only. */
const SQLSTATE = /^(?!P[1-9])(?=.*\d)[0-9A-Z]{5}$/;

/**
 * Whether a claim that failed so has surely left no record: the store said so, or the server, which then commits nothing of its
 * transaction. A time limit of the client says neither.
 */
export function isRefusal(error: unknown): boolean {
  if (error instanceof KeyLocked || error instanceof StoreClosed) return true;
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: unknown };
  return (typeof code === 'string' && SQLSTATE.test(code)) || (cause !== undefined && isRefusal(cause));
}
