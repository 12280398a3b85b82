// @ts-nocheck until the rules are the reference of this suite
import type { Fingerprint, Scope, Token } from '../../../src/lib/brands.ts';
import type { Completion } from '../../../src/lib/exchange.ts';
import { newToken } from '../../../src/lib/random.ts';
import {
  type Execution,
  type Fenced,
  type Lifetimes,
  type Owner,
  type PeekAnswer,
  type Resolution,
  type Resolved,
  type StartAnswer,
  type UnansweredOptions,
  VOID_TOKEN_MS,
} from '../../../src/store/contract.ts';

/** The record of a scope. An absent scope has none. */
export interface ReferenceRecord {
  state: 'executing' | 'completed' | 'in_doubt';
  token: Token;
  fingerprint: Fingerprint;
  requestId: string;
  wasInDoubt: boolean;
  /** The owner marked the record in doubt itself, so a resolution need not wait for its lease. */
  gaveUp: boolean;
  /** The owner counts as alive until then. */
  aliveUntilMs: number;
  startedAtMs: number;
  expiresAtMs: number;
  completion?: Completion;
}

/** `gave_up`: the token is void, so the store refuses it and writes nothing. */
export type GaveUp = 'gave_up';

/**
 * The life of a key: one map, one clock that the test moves, one step for each command. It follows the rules of ADR 1 and not
 * the code of a store.
 */
export class Reference {
  readonly lifetimes: Lifetimes;
  readonly #records = new Map<Scope, ReferenceRecord>();
  readonly #voidUntilMs = new Map<string, number>();
  nowMs = 0;

  constructor({ leaseMs, retentionMs, inDoubtRetentionMs }: Lifetimes) {
    this.lifetimes = { leaseMs, retentionMs, inDoubtRetentionMs };
  }

  /** A copy that is independent of the original. */
  clone(): Reference {
    const clone = new Reference(this.lifetimes);
    clone.nowMs = this.nowMs;
    for (const [scope, record] of this.#records) clone.#records.set(scope, record);
    for (const [token, untilMs] of this.#voidUntilMs) clone.#voidUntilMs.set(token, untilMs);
    return clone;
  }

  at(scope: Scope): ReferenceRecord | undefined {
    const record = this.#records.get(scope);
    return record && this.nowMs < record.expiresAtMs ? record : undefined;
  }

  isAlive({ aliveUntilMs }: ReferenceRecord): boolean {
    return this.nowMs < aliveUntilMs;
  }

  /** Whether any token has ever been made void. */
  get hasVoidTokens(): boolean {
    return this.#voidUntilMs.size > 0;
  }

  isVoid(token: Token): boolean {
    return this.nowMs < (this.#voidUntilMs.get(token.toString('hex')) ?? 0);
  }

  start(execution: Execution): StartAnswer['kind'] | GaveUp {
    const { scope, token, fingerprint, requestId } = execution;
    const record = this.at(scope);
    if (!record) {
      if (this.isVoid(token)) return 'gave_up';
      const fresh = { wasInDoubt: false, gaveUp: false, startedAtMs: this.nowMs, ...this.#executing() };
      this.#set(scope, { ...fresh, token, fingerprint, requestId });
      return 'started';
    }
    if (record.state === 'executing' && record.token.equals(token)) return 'started';
    const standing = this.#standing(record, fingerprint);
    // The owner is dead, and it is unknown what it sent.
    if (standing === 'in_doubt' && record.state === 'executing')
      this.#set(scope, { ...record, ...this.#inDoubt(), gaveUp: false });
    return standing;
  }

  peek({ scope, fingerprint }: Pick<Execution, 'scope' | 'fingerprint'>): PeekAnswer['kind'] {
    const record = this.at(scope);
    return record ? this.#standing(record, fingerprint) : 'absent';
  }

  restart({ scope, token, fingerprint }: Execution): 'ok' | 'changed' | GaveUp {
    const record = this.at(scope);
    if (record?.state === 'executing' && record.token.equals(token)) return 'ok';
    if (record?.state !== 'in_doubt' || !record.fingerprint.equals(fingerprint)) return 'changed';
    if (this.isVoid(token)) return 'gave_up';
    return this.#set(scope, { ...record, ...this.#executing(), token, gaveUp: false, wasInDoubt: true });
  }

  renew(owner: Owner): Fenced | 'lost' {
    const record = this.#ownedBy(owner);
    if (!record) return 'stale';
    if (record.state === 'completed') return 'ok';
    const lost = !this.isAlive(record);
    const wasInDoubt = record.wasInDoubt || lost;
    this.#set(owner.scope, { ...record, wasInDoubt, aliveUntilMs: this.nowMs + this.lifetimes.leaseMs });
    return lost ? 'lost' : 'ok';
  }

  complete({ scope, token, fingerprint, requestId }: Execution, completion: Completion): Fenced {
    const record = this.at(scope);
    if (!record) {
      const fresh = { token, fingerprint, requestId, gaveUp: false, startedAtMs: this.nowMs };
      return this.#set(scope, { ...fresh, ...this.#completedAfterDoubt(completion) });
    }
    if (!record.token.equals(token)) return 'stale';
    // The same completion is repeated because its answer was lost.
    if (record.state === 'completed') return 'ok';
    const expiresAtMs = record.startedAtMs + this.lifetimes.retentionMs;
    const doubtful =
      record.state === 'in_doubt' || record.wasInDoubt || !this.isAlive(record) || expiresAtMs <= this.nowMs;
    if (doubtful) return this.#set(scope, { ...record, ...this.#completedAfterDoubt(completion) });
    const aliveUntilMs = this.nowMs;
    return this.#set(scope, { ...record, state: 'completed', completion, aliveUntilMs, expiresAtMs });
  }

  release(owner: Owner, options: UnansweredOptions = {}): Fenced {
    this.#voidIfAsked(owner, options);
    const record = this.#ownedBy(owner);
    if (!record || record.state === 'completed') return 'stale';
    return this.#set(owner.scope, undefined);
  }

  markInDoubt(owner: Owner, options: UnansweredOptions = {}): Fenced {
    this.#voidIfAsked(owner, options);
    const record = this.#ownedBy(owner);
    if (!record || record.state === 'completed') return 'stale';
    return this.#set(owner.scope, { ...record, ...this.#inDoubt(), gaveUp: true });
  }

  resolve(scope: Scope, seen: Token, resolution: Resolution): Resolved {
    const record = this.#ownedBy({ scope, token: seen });
    if (!record || record.state === 'completed') return 'changed';
    if (!record.gaveUp && this.isAlive(record)) return 'alive';
    if (resolution.as === 'released') return this.#set(scope, undefined);
    const completed = this.#completedAfterDoubt(resolution.completion);
    // The new token belongs to no execution, so that a late complete is refused.
    return this.#set(scope, { ...record, ...completed, token: newToken() });
  }

  #standing(record: ReferenceRecord, fingerprint: Fingerprint) {
    if (!record.fingerprint.equals(fingerprint)) return 'mismatch';
    if (record.state === 'completed')
      return record.completion?.kind === 'tombstone' ? 'tombstone' : 'completed';
    return record.state === 'executing' && this.isAlive(record) ? 'in_flight' : 'in_doubt';
  }

  #executing() {
    const { leaseMs, inDoubtRetentionMs } = this.lifetimes;
    const [aliveUntilMs, expiresAtMs] = [this.nowMs + leaseMs, this.nowMs + inDoubtRetentionMs];
    return { state: 'executing' as const, aliveUntilMs, expiresAtMs };
  }

  #inDoubt() {
    return { state: 'in_doubt' as const, wasInDoubt: true, aliveUntilMs: this.nowMs };
  }

  #completedAfterDoubt(completion: Completion) {
    const expiresAtMs = this.nowMs + this.lifetimes.inDoubtRetentionMs;
    return { ...this.#inDoubt(), state: 'completed' as const, completion, expiresAtMs };
  }

  #voidIfAsked({ token }: Owner, { voidToken = false }: UnansweredOptions): void {
    if (voidToken) this.#voidUntilMs.set(token.toString('hex'), this.nowMs + VOID_TOKEN_MS);
  }

  #ownedBy({ scope, token }: Owner): ReferenceRecord | undefined {
    const record = this.at(scope);
    return record?.token.equals(token) ? record : undefined;
  }

  #set(scope: Scope, record: ReferenceRecord | undefined): 'ok' {
    if (record) this.#records.set(scope, record);
    else this.#records.delete(scope);
    return 'ok';
  }
}
