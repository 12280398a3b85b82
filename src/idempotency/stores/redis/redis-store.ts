import type { Token } from '../../../kernel/brands.ts';
import type { Completion } from '../../../kernel/exchange.ts';
import {
  type Execution,
  type Fenced,
  type IdempotencyRecord,
  type Owner,
  type PeekAnswer,
  type Standing,
  type StartAnswer,
  type Store,
  type UnansweredOptions,
  UnreadableRecord,
  VOID_TOKEN_MS,
} from '../../store.ts';
import type { Argument } from './client.ts';
import {
  decodeRecord,
  encodeCompletion,
  encodeRecord,
  encodeTime,
  isThisFormat,
  layout,
  lifetimesIn,
} from './codec.ts';
import { type Reply, scripts } from './commands.ts';
import { leaseValueOf } from './lease.ts';
import { leaseOf, notReplicated, RedisRecords, type RedisStoreOptions, wordOf } from './records.ts';

export type { RedisStoreOptions } from './records.ts';

/**
 * The store for more than one machine. One string per scope, changed by scripts that compare and set. The key's own time to
 * live is the record's age. A replay is one command, a first execution two: start and complete.
 */
export class RedisStore extends RedisRecords implements Store {
  /** @throws {StoreUnavailable} if Redis cannot be reached, or cannot keep records */
  static async open(options: RedisStoreOptions): Promise<RedisStore> {
    const store = new RedisStore(options);
    await store.connect();
    return store;
  }

  async start(execution: Execution): Promise<StartAnswer> {
    const { scope, fingerprint, token } = execution;
    const { inDoubtRetentionMs } = this.options.lifetimes;
    const key = this.keyOf(scope);
    const keys = [key, leaseOf(key), voidKeyOf(key, token)];
    const args: Argument[] = [
      this.#encode(execution),
      inDoubtRetentionMs,
      leaseValueOf(execution),
      this.leases.scriptMs,
      this.commands.waits ? 1 : 0,
    ];
    let dead: Token | '' = '';
    for (;;) {
      const written = this.commands.write(scripts.start, keys, [...args, dead]);
      const reply = await written.reply;
      if (reply === null) {
        if (written.replicated && !(await written.replicated)) throw notReplicated('start');
        this.leases.take(execution);
        return { kind: 'started' };
      }
      // Only these two answers need their WAIT: what a failover can lose was never a reason to execute.
      const { standing, token: other } = standingOf(reply, fingerprint);
      if (standing.kind === 'completed' || standing.kind === 'tombstone') {
        if (written.replicated && !(await written.replicated)) throw notReplicated('replayed record');
      }
      // An executing record came back: it is older than its lease, and the lock nodes know whether its owner is alive.
      if (!other || (await this.leases.isHeld(scope))) return standing;
      dead = other;
    }
  }

  async peek({ scope, fingerprint }: Pick<Execution, 'scope' | 'fingerprint'>): Promise<PeekAnswer> {
    const key = this.keyOf(scope);
    for (;;) {
      const leasesHere = this.leases.scriptMs > 0;
      const reply = await this.commands.run(
        scripts.peek,
        [key, leaseOf(key)],
        [fingerprint, leasesHere ? 1 : 0],
      );
      if (reply === null) return { kind: 'absent' };
      const { standing, token: other, record } = standingOf(reply, fingerprint);
      if (other && record && (leasesHere || !(await this.leases.isHeld(scope)))) return doubtAbout(record);
      if (!this.commands.waits || (standing.kind !== 'completed' && standing.kind !== 'tombstone'))
        return standing;
      const seen = (reply as Buffer).subarray(0, layout.flags);
      const written = this.commands.write(scripts.confirm, [key], [seen]);
      if (wordOf(await written.reply) !== 'ok') continue;
      if (written.replicated && !(await written.replicated)) throw notReplicated('replayed record');
      return standing;
    }
  }

  async restart(execution: Execution): Promise<'ok' | 'changed'> {
    const { token, fingerprint, scope } = execution;
    const key = this.keyOf(scope);
    const encoded = this.#encode(execution);
    const { gatewayId, lifetimes } = this.options;
    const written = this.commands.write(
      scripts.restart,
      [key, leaseOf(key), voidKeyOf(key, token)],
      [
        token,
        fingerprint,
        lifetimesIn(encoded),
        this.#now(),
        Buffer.from(`${String.fromCharCode(gatewayId.length)}${gatewayId}`, 'latin1'),
        lifetimes.inDoubtRetentionMs,
        leaseValueOf(execution),
        this.leases.scriptMs,
      ],
    );
    if (wordOf(await written.reply) !== 'ok') return 'changed';
    if (written.replicated && !(await written.replicated)) throw notReplicated('restart');
    this.leases.take(execution);
    return 'ok';
  }

  async renew(owner: Owner): Promise<Fenced | 'lost'> {
    const renewed = this.leases.renew(owner);
    const start = await this.commands.answering(() =>
      this.client.getrangeBuffer(this.keyOf(owner.scope), 0, layout.flags - 1),
    );
    if (start.length > 0 && !isThisFormat(start)) throw new UnreadableRecord('the record has another format');
    if (!start.subarray(layout.token).equals(owner.token)) {
      this.leases.giveBack(owner);
      return 'stale';
    }
    if (await renewed) return 'ok';
    await this.commands.run(scripts.markLapsed, [this.keyOf(owner.scope)], [owner.token]);
    this.leases.lapseMarked(owner);
    return 'lost';
  }

  async complete(execution: Execution, completion: Completion): Promise<Fenced> {
    const { code, bytes } = encodeCompletion(completion);
    const onLockNodes = this.leases.onLockNodes(execution);
    const key = this.keyOf(execution.scope);
    const keys = [key, leaseOf(key)];
    const args: Argument[] = [
      execution.token,
      leaseValueOf(execution),
      code,
      this.#now(),
      bytes,
      onLockNodes === undefined ? '' : onLockNodes ? 1 : 0,
    ];
    const { inDoubtRetentionMs } = this.options.lifetimes;
    let written = this.commands.write(scripts.complete, keys, [...args, '', 0]);
    let answer = wordOf(await written.reply);
    if (answer === 'absent') {
      const whole = this.#encode(execution, completion);
      written = this.commands.write(scripts.complete, keys, [...args, whole, inDoubtRetentionMs]);
      answer = wordOf(await written.reply);
    }
    this.leases.giveBack(execution);
    if (written.replicated && !(await written.replicated)) {
      // Stored, but a failover could undo it: it is to be written again until the replicas have it too.
      this.options.onUnreplicated?.();
      throw notReplicated('completion');
    }
    return answer as Fenced;
  }

  async release(owner: Owner, { voidToken = false }: UnansweredOptions = {}): Promise<Fenced> {
    const key = this.keyOf(owner.scope);
    const written = this.commands.write(
      scripts.release,
      [key, leaseOf(key), voidKeyOf(key, owner.token)],
      [owner.token, leaseValueOf(owner), voidToken ? VOID_TOKEN_MS : 0],
    );
    const answer = wordOf(await written.reply);
    this.leases.giveBack(owner);
    // Also if it was stale: the record may have been removed by an earlier attempt that had not reached the replicas.
    if (written.replicated && !(await written.replicated)) throw notReplicated('release');
    return answer as Fenced;
  }

  /** Needs no WAIT: if a failover loses it, the record is executing without an owner, which also reads as in doubt. */
  async markInDoubt(owner: Owner, { voidToken = false }: UnansweredOptions = {}): Promise<Fenced> {
    const key = this.keyOf(owner.scope);
    const reply = await this.commands.run(
      scripts.markInDoubt,
      [key, leaseOf(key), voidKeyOf(key, owner.token)],
      [owner.token, leaseValueOf(owner), voidToken ? VOID_TOKEN_MS : 0, this.#now()],
    );
    this.leases.giveBack(owner);
    return wordOf(reply) as Fenced;
  }

  /** The record of an execution: executing, or created as completed by a late `complete`. */
  #encode(execution: Execution, completion?: Completion): Buffer {
    const { gatewayId, lifetimes, clock } = this.options;
    const nowMs = clock.wallMs();
    return encodeRecord({
      state: completion ? 'completed' : 'executing',
      token: execution.token,
      fingerprint: execution.fingerprint,
      merchant: execution.merchant,
      operation: execution.operation,
      key: execution.key,
      requestId: execution.requestId,
      gatewayId,
      lifetimes,
      wasInDoubt: completion !== undefined,
      createdAtMs: nowMs,
      changedAtMs: nowMs,
      ...(completion && { completion }),
    });
  }

  #now(): Buffer {
    return encodeTime(this.options.clock.wallMs());
  }
}

const voidKeyOf = (key: string, token: Token): string => `${key}:void:${token.toString('hex')}`;

/** What a script's answer means for a request. With `token`, the record is executing and its owner may be dead. */
function standingOf(
  reply: Reply,
  fingerprint: Execution['fingerprint'],
): { standing: Standing; token?: Token; record?: IdempotencyRecord } {
  if (!(reply instanceof Buffer)) return { standing: { kind: 'in_flight' } };
  const record = decodeRecord(reply);
  if (!record.fingerprint.equals(fingerprint)) return { standing: { kind: 'mismatch' } };
  const { completion, requestId } = record;
  if (completion?.kind === 'response')
    return { standing: { kind: 'completed', response: completion.response, requestId } };
  if (completion) return { standing: { kind: 'tombstone', requestId } };
  if (record.state === 'in_doubt') return { standing: doubtAbout(record) };
  return { standing: { kind: 'in_flight' }, token: record.token, record };
}

const doubtAbout = ({ changedAtMs, operation, requestId }: IdempotencyRecord): Standing => ({
  kind: 'in_doubt',
  sinceMs: changedAtMs,
  operation,
  requestId,
});
