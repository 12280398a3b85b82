import type { RecordId, Token } from '../lib/brands.ts';
import { type Clock, momentOf, sinceMs, systemClock } from '../lib/clock.ts';
import type { Completion } from '../lib/exchange.ts';
import { type Random, systemRandom } from '../lib/random.ts';
import type { CountedNote, DoubtCount, Resolution, Resolved } from '../store/doubts.ts';
import { type Held, KeyLocked, type Register, type Reply, type Seen, type Write } from '../store/register.ts';
import { ResponseCipher } from '../store/response-cipher.ts';
import {
  type Execution,
  type ExistingAnswer,
  type IdentityInUse,
  type Mode,
  type Owner,
  type OwnerMemory,
  type PeekAnswer,
  type RecordDefaults,
  type StartAnswer,
  StoreClosed,
  type StoreHealth,
  StoreUnavailable,
  UnreadableRecord,
  type Written,
} from '../store/types.ts';
import { LedgerReader } from './reader.ts';
import type { RuleResult, Stamp } from './rules.ts';
import * as rules from './rules.ts';

export interface LedgerOptions extends RecordDefaults {
  clock?: Clock;
  random?: Random;
  /** Default: responses are stored as they are. */
  cipher?: ResponseCipher;
}

/** Each refusal means that another request has changed the record meanwhile. No history needs as many. */
const ROUNDS = 4;
type Rule<Answer> = (held: Held | undefined, stamp: Stamp) => RuleResult<Answer>;

/**
 * Holds one record per key: applies the rules of a key's life to what a register holds. It guesses what is there, asks the rule, and
 * writes. If something else is there, the register refuses the write, and the rule is asked again with that.
 *
 * A first payout guesses right twice, so it takes two commands. A replay is one refused `create`.
 *
 * **Durable** means: the answer arrives when the write survives a crash. With SQLite it is on the disk. With Redis it is as
 * safe as Redis' own settings make it, and with `durability.replicas` it survives a failover.
 *
 * **Errors.** A method that cannot answer throws {@link StoreUnavailable}. If its `maybeWritten` is true, the write may have
 * happened, or may still happen later. Repeating a write with the same token is always safe.
 *
 * **Unreadable records.** A value that is not a valid record is never treated as absent. A method that needs the record
 * throws {@link UnreadableRecord}.
 */
export class Ledger extends LedgerReader {
  readonly #own: RecordDefaults;
  readonly #random: Random;
  /**
   * A copy has closed the store. This process starts nothing any more, even if the store opens again: it may have lost its identity
   * together with its records.
   */
  #closed: StoreClosed | undefined;

  constructor(register: Register, options: LedgerOptions) {
    const { gatewayId, lifetimes, clock = systemClock, random = systemRandom } = options;
    super(register, clock, options.cipher ?? new ResponseCipher());
    this.#own = { gatewayId, lifetimes };
    this.#random = random;
  }

  /** Why starts and restarts are refused now, as far as the store knows without a command. */
  get refusing(): string | undefined {
    return this.#closed?.message ?? this.register.refusing;
  }

  /**
   * absent → executing. Durable: the request may be sent only after `started`.
   *
   * If a record exists, answers what that record means for this request. If it is executing, has the same fingerprint and
   * its owner is dead, the store first marks it in doubt. If the record is executing under this token, the start is a
   * repetition of one whose answer was lost, and the answer is `started`.
   */
  start(execution: Execution): Promise<StartAnswer> {
    const { recordId } = execution;
    const connection = this.connectionOf(recordId);
    execution.memory = this.#memory();
    const rule: Rule<{ kind: 'started' } | rules.Meaning> = (held, stamp) => {
      // Between two rounds: a new connection may lead to a store that has forgotten what the old one knew.
      if (this.connectionOf(recordId) !== connection)
        throw new StoreUnavailable('the store was connected again', { maybeWritten: false });
      return rules.start(held, execution, this.#own, stamp);
    };
    const decrypt = this.#decrypter<{ kind: 'started' }>(recordId);
    // The guess is that nothing is there, so the rule writes first, and reads only what a refused write brings.
    return this.#apply(recordId, undefined, rule, decrypt, execution) as Promise<StartAnswer>;
  }

  /** Answers what the record means for this request, as `start` would. If its owner is dead, marks it in doubt first. */
  async peek({ recordId, fingerprint }: Pick<Execution, 'recordId' | 'fingerprint'>): Promise<PeekAnswer> {
    const rule: Rule<{ kind: 'absent' } | rules.Meaning> = (held, stamp) =>
      rules.peek(held, fingerprint, stamp);
    const decrypt = this.#decrypter<{ kind: 'absent' }>(recordId);
    const seen = await this.register.read(recordId);
    const answer = await this.#apply(recordId, seen, rule, decrypt);
    // Most reads are polls that find none of these. Only what a merchant acts on must survive a failover.
    if (!this.register.replicates || !FINAL.has(answer.kind)) return answer;
    return await this.#apply(recordId, await this.register.read(recordId, true), rule, decrypt);
  }

  /**
   * in doubt → executing, under the token, gateway id and lifetimes of this execution. The record keeps its first request
   * id and its creation time. Durable, as `start` is.
   *
   * @returns `changed` if the record is not in doubt, has another fingerprint or operation, or does not exist
   */
  async restart(execution: Execution): Promise<'ok' | 'changed'> {
    const memory = this.#memory();
    execution.memory = memory;
    const rule: Rule<'ok' | 'changed'> = (held, stamp) => {
      memory.before = held?.record;
      return rules.restart(held, execution, this.#own, stamp);
    };
    const seen = await this.register.read(execution.recordId, true);
    return await this.#apply(execution.recordId, seen, rule, same, execution);
  }

  /**
   * Extends the owner's lease.
   *
   * @returns `lost` if other gateways may have found the owner dead meanwhile. Even then the lease is taken again, if it is free.
   */
  async renew(owner: Owner): Promise<Written | 'lost'> {
    const { recordId, token } = owner;
    owner.memory ??= this.#memory();
    const { memory } = owner;
    const sent = momentOf(this.clock);
    // A superseded owner must not keep the record of another, dead owner in flight.
    const seen = await this.register.read(recordId);
    if (!seen?.record.token.equals(token)) {
      await this.register.endLease(recordId, token);
      return 'stale';
    }
    if (seen.record.state === 'completed') return 'ok';
    const renewed = await this.register.renew(recordId, token, this.#own.lifetimes.leaseMs);
    const wasLapsed = memory.mayHaveLapsed;
    // The first renewal takes the lease. A later one that has to take it again shows that it had lapsed.
    const lapsed = !this.#isAlive(memory) || renewed === 'lost' || (renewed === 'taken' && memory.hasRenewed);
    memory.mayHaveLapsed ||= lapsed || seen.record.state === 'in_doubt';
    if (renewed !== 'lost') {
      memory.alive = sent;
      memory.hasRenewed = true;
    }
    return memory.mayHaveLapsed && !wasLapsed ? 'lost' : 'ok';
  }

  /**
   * executing or in doubt → completed. Durable. Gives the lease back. Repeating it with the same token is `ok` and
   * changes nothing, even with another completion.
   *
   * If there is no record, creates it as completed, because the backend has executed the request. `wasInDoubt` is set if the
   * record was created so, if it was in doubt, if the owner may have counted as dead, or if it is older than its retention.
   *
   * @param wasTold the merchant has been answered `outcome_unknown`. The record then counts as having been in doubt.
   *   Default: false
   */
  complete(execution: Execution, completion: Completion, wasTold = false): Promise<Written> {
    const { recordId } = execution;
    const encrypted = this.cipher.encrypt(recordId, completion);
    return this.#applyOwn(execution, (held, stamp) =>
      rules.complete(held, execution, encrypted, wasTold, this.#own, stamp),
    );
  }

  /**
   * executing or in doubt → absent. Durable. Gives the lease back, and voids the token. Only for a request that the backend
   * surely did not execute, because the next request with the key is sent. A record that was restarted stays in doubt.
   */
  release(owner: Owner): Promise<Written> {
    return this.#applyOwn(owner, (held, stamp) => rules.release(held, owner.token, stamp));
  }

  /**
   * executing → in doubt, called by the owner, who gives its lease back. A record that is in doubt already stays so: `ok`.
   * Not necessarily durable: if the write is lost, the owner soon counts as dead, and readers answer `in_doubt` too.
   *
   * @param cause for people. At most 255 latin1 characters. Default: none
   */
  leaveInDoubt(owner: Owner, cause = ''): Promise<Written> {
    return this.#applyOwn(owner, (held, stamp) => rules.leaveInDoubt(held, owner.token, cause, stamp));
  }

  /**
   * Undoes a `start` or `restart` whose reply was lost, and under which nothing was sent. What was there before is there
   * again. The command may still arrive, so the token is void for {@link VOID_TOKEN_MS}. Repeat it until the store answers.
   */
  takeBack(owner: Owner): Promise<Written> {
    const { token, memory } = owner;
    const before = memory?.before;
    if (!memory?.record) return this.#voidToken(owner);
    return this.#applyOwn(owner, (held, stamp) =>
      before ? rules.takeBackRestart(held, token, before, stamp) : rules.takeBackStart(held, token),
    );
  }

  /**
   * in doubt, or executing with a dead owner → completed under a new token, or absent. The new token makes a late
   * `complete` of the old owner stale. Adds an audit record in the same atomic step, and counts the resolution
   * ({@link DoubtCount}). Durable.
   *
   * @param seen the token of the record that the decision was made on
   */
  async resolve(
    recordId: RecordId,
    seen: Token,
    resolution: Resolution,
    note: CountedNote,
  ): Promise<Resolved> {
    const stored =
      resolution.as === 'completed'
        ? { ...resolution, completion: this.cipher.encrypt(recordId, resolution.completion) }
        : resolution;
    const token = this.#random.token();
    const held = await this.register.read(recordId);
    const rule: Rule<Resolved> = (now, stamp) => rules.resolve(now, seen, stored, note, token, stamp);
    return await this.#apply(recordId, held, rule, same);
  }

  /**
   * Raises the count of the store's identity, which it makes if there is none. Notes for {@link VISIT_LASTS_MS} that a gateway in this
   * mode uses the store. Durable.
   *
   * @param replacing an id in whose place the store gets another one
   */
  visit(mode: Mode, replacing?: string): Promise<IdentityInUse> {
    return this.register.visit(mode, replacing);
  }

  /** Writes a probe record, because a store that can only read is not ready. Does not throw. */
  async health(): Promise<StoreHealth> {
    const health = await this.register.health();
    if (health.isClosed) this.#closed ??= new StoreClosed(health.detail);
    return this.#closed ? { ...health, ok: false, isClosed: true, detail: this.#closed.message } : health;
  }

  /** Applies an event of an owner, which begins with what it wrote last. */
  async #applyOwn(owner: Owner, rule: Rule<Written>): Promise<Written> {
    const guess = this.#guess(owner) ?? (await this.register.read(owner.recordId));
    return await this.#apply(owner.recordId, guess, rule, same);
  }

  /** Takes back a start that this process has not written. Another one may have. */
  async #voidToken({ recordId, token }: Owner): Promise<Written> {
    const along = { endLeaseOf: token, voidToken: token } as const;
    const nothing = { record: undefined, operation: '', expiresInMs: 0 } as const;
    // No record has this revision, so the write is refused. Its token is void then.
    const revision = this.#random.token();
    const reply = await this.register.replace(recordId, { kind: 'replace', revision, ...nothing, ...along });
    const held = reply.done ? undefined : reply.held;
    return await this.#apply(recordId, held, (seen) => rules.takeBackStart(seen, token), same);
  }

  /**
   * Each write has a revision of its own. One for all rounds of an event would give a mark on another owner's record the revision
   * of this owner's refused create, and the owner's next write would then hit that record.
   *
   * @param finish makes the answer of the rule the answer of the event
   * @param starter learns what is written for it. Its later events begin with that, so it must not learn of a write that may never
   *   have happened: a complete that is repeated would take itself for done
   */
  #apply<Answer, Final>(
    id: RecordId,
    guess: Seen | undefined,
    rule: Rule<Answer>,
    finish: (answer: Answer) => Final,
    starter?: Owner,
    round = 0,
  ): Final | Promise<Final> {
    if (guess && guess.isLeased === undefined)
      return this.askNodes(id, guess).then((held) => this.#apply(id, held, rule, finish, starter, round));
    const { answer, write } = rule(guess as Held | undefined, this.#stamp());
    if (!write) return finish(answer);
    const isOwn = write.record?.token === starter?.token;
    if (isOwn && starter?.memory) starter.memory.record = write.record;
    return this.#write(id, write).then(
      (reply) => {
        if (reply.done) return finish(answer);
        if (round < ROUNDS) return this.#apply(id, reply.held, rule, finish, starter, round + 1);
        throw new StoreUnavailable('the record keeps changing', { maybeWritten: false });
      },
      (error: unknown) => {
        if (error instanceof StoreClosed) this.#closed = error;
        // Only a start creates.
        if (error instanceof KeyLocked && write.kind === 'create')
          return finish({ kind: 'in_flight' } as Answer);
        // A start was refused before, and only its mark on another owner's record may have been written.
        if (starter && !isOwn && error instanceof StoreUnavailable && error.maybeWritten)
          throw new StoreUnavailable(error.message, { cause: error, maybeWritten: false });
        throw error;
      },
    );
  }

  #write(id: RecordId, write: Write): Promise<Reply> {
    if (this.#closed && (write.kind === 'create' || write.unlessClosed)) return Promise.reject(this.#closed);
    return write.kind === 'create' ? this.register.create(id, write) : this.register.replace(id, write);
  }

  #memory(): OwnerMemory {
    const sent = momentOf(this.clock);
    return {
      sent,
      alive: sent,
      hasRenewed: false,
      mayHaveLapsed: false,
      record: undefined,
      before: undefined,
    };
  }

  #isAlive = ({ alive }: OwnerMemory) => sinceMs(this.clock, alive) < this.#own.lifetimes.leaseMs;

  /** The record that this process wrote last for the owner. The store holds it unless another process has changed it. */
  #guess({ memory }: Owner): Held | undefined {
    if (!memory?.record) return undefined;
    const { record, sent, mayHaveLapsed } = memory;
    const ageMs = sinceMs(this.clock, sent);
    const isLeased = !mayHaveLapsed && this.#isAlive(memory);
    return { record, expiresInMs: record.lifetimes.inDoubtRetentionMs - ageMs, isLeased };
  }

  /** Returns a function that decrypts the response in a rule's answer. */
  #decrypter<Answer extends { kind: 'started' | 'absent' }>(recordId: RecordId) {
    return (answer: Answer | rules.Meaning): Answer | ExistingAnswer => {
      if (answer.kind !== 'completed') return answer;
      const { kind, completion, requestId } = answer;
      return { kind, response: this.cipher.decryptResponse(recordId, completion), requestId };
    };
  }

  #stamp(): Stamp {
    return { revision: this.#random.token(), wallMs: this.clock.wallMs() };
  }
}

/** The store, as the rest of the gateway sees it. {@link measured} and the faulty stores of tests offer the same. */
export type Store = Pick<Ledger, keyof Ledger>;

const FINAL: ReadonlySet<string> = new Set(['completed', 'tombstone', 'in_doubt']);

const same = <T>(answer: T): T => answer;
