import type { Fingerprint, Scope } from '../kernel/brands.ts';
import type { Place } from '../kernel/exchange.ts';
import type { Call, Result } from './call.ts';

/** The leader's result, or the order to take the leader's place. */
type Outcome = Result | 'lead';

interface Follower {
  /** Its waiting time is over, but the leader does not know yet whether the key is in flight. */
  overdue: boolean;
  end(outcome: Outcome): void;
}

/** The same request several times in this process: one leads, and the others follow it. */
export class Lead {
  readonly fingerprint: Fingerprint;
  /** The leader's place in the queue for a slot. A follower that becomes the leader takes it over. */
  place: Place | undefined;
  #followers: Follower[] = [];
  #inFlight = false;

  constructor(fingerprint: Fingerprint) {
    this.fingerprint = fingerprint;
  }

  /** The key is in flight: followers whose time is over are answered so from now on. */
  markInFlight(): void {
    if (this.#inFlight) return;
    this.#inFlight = true;
    const overdue = this.#followers.filter((follower) => follower.overdue);
    this.#followers = this.#followers.filter((follower) => !follower.overdue);
    for (const { end } of overdue) end({ kind: 'in_flight' });
  }

  /** Waits for the leader, at most `ms` (and until it is known whether the key is in flight). */
  follow(ms: number, gone: AbortSignal | undefined): Promise<Outcome> {
    return new Promise((resolve) => {
      const leave = () => {
        this.#followers = this.#followers.filter((other) => other !== follower);
        follower.end({ kind: 'in_flight' });
      };
      const timeOver = () => {
        if (this.#inFlight) leave();
        else follower.overdue = true;
      };
      const timer = ms > 0 ? setTimeout(timeOver, ms) : undefined;
      const follower: Follower = {
        overdue: false,
        end: (outcome) => {
          clearTimeout(timer);
          gone?.removeEventListener('abort', leave);
          resolve(outcome);
        },
      };
      this.#followers.push(follower);
      gone?.addEventListener('abort', leave);
      if (gone?.aborted) leave();
      else if (ms <= 0) timeOver();
    });
  }

  endAll(result: Result): void {
    for (const { end } of this.#followers.splice(0)) end(result);
  }

  /** Makes the longest waiting follower the leader. False: there is none. */
  promote(): boolean {
    const next = this.#followers.shift();
    this.#inFlight = false;
    next?.end('lead');
    return next !== undefined;
  }
}

/**
 * Duplicates that arrive in one process. They cost the store what one request costs: only the leader asks it, and followers
 * share what the leader learns.
 */
export class Duplicates {
  readonly #leads = new Map<Scope, Lead>();
  #following = 0;

  /** Requests that wait for a leader of this process. */
  get following(): number {
    return this.#following;
  }

  /**
   * The lead, or undefined if the same request is under way and is to be followed. Another request under the same key
   * follows none: the store tells it that the key is taken.
   */
  tryLead({ scope, fingerprint }: Call): Lead | undefined {
    const known = this.#leads.get(scope);
    if (known?.fingerprint.equals(fingerprint)) return undefined;
    const lead = new Lead(fingerprint);
    if (!known) this.#leads.set(scope, lead);
    return lead;
  }

  /** Waits for the leader of this scope, at most `ms`: its result, or the lead. */
  async follow({ scope, gone }: Call, ms: number): Promise<Result | Lead> {
    const lead = this.#leads.get(scope);
    if (!lead) throw new Error('there is no leader to follow');
    this.#following++;
    const outcome = await lead.follow(ms, gone);
    this.#following--;
    return outcome === 'lead' ? lead : outcome;
  }

  /**
   * The leader has ended. Its followers get the result if it is theirs as well; otherwise the next one leads, so that
   * after a release duplicates start one at a time.
   */
  handOver({ scope, requestId }: Call, lead: Lead, result: Result | undefined): void {
    const shared = result && sharedBy(result, requestId);
    if (shared) lead.endAll(shared);
    if (lead.promote()) return;
    if (this.#leads.get(scope) === lead) this.#leads.delete(scope);
    lead.place?.leave();
    lead.place = undefined;
  }

  /** Ends all waiting with this result. */
  endAll(result: Result): void {
    for (const lead of this.#leads.values()) lead.endAll(result);
  }
}

/**
 * What a leader's result means for a duplicate of its request. Undefined: the duplicate has to ask for itself.
 *
 * @param requestId the leader's
 */
function sharedBy(result: Result, requestId: string): Result | undefined {
  switch (result.kind) {
    case 'executed':
      if (!result.stored) return undefined;
      if (result.exchange.kind !== 'complete') return { kind: 'tombstone', requestId };
      return { kind: 'replayed', response: result.exchange.response, requestId };
    case 'in_flight':
    case 'overloaded':
      return undefined;
    default:
      return result;
  }
}
