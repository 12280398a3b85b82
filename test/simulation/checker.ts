import type { Result } from '../../src/idempotency/call.ts';
import { type Decision, decideFor, type StatusPolicy } from '../../src/idempotency/outcome.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import type { BackendResponse, Exchange, LookupAnswer } from '../../src/lib/exchange.ts';
import type { Lifetimes } from '../../src/store/types.ts';
import type { Execution, Sent } from './backend.ts';

export interface CheckerOptions {
  /** How far the clocks of the store may be from true time. */
  slackMs: number;
  /** The backend executes each key once, and gateways may send again if they announce it. */
  maySendAgain: boolean;
  /** Nothing breaks, so that no owner seems to be dead. */
  isQuiet: boolean;
  /** Whatever breaks, no key is in doubt. */
  isNeverInDoubt?: boolean;
}

/** One request of a merchant. */
interface Request {
  atMs: number;
  /** Another body under the same key. */
  isOther: boolean;
  operation: string;
}

interface Dispatch {
  request: string;
  /** What its gateway has decided by its end, if it has seen one. */
  decision: Decision | undefined;
  /** It was decided so at first. A later response is stored a while after it was seen. */
  wasInDoubt: boolean;
  /** The request's gateway has seen that it was not executed. */
  wasRefused: boolean;
  /** How often an operator or a lookup has released the key after it was sent. */
  releases: number;
}

/** What merchants, operators and the backend know of one key. A new one is used once the record may have expired. */
interface Key {
  /** The merchant sent the first request of this life that left a gateway. */
  startMs: number;
  /** When the request left its gateway. */
  sentMs: number;
  /** The lifetimes of the gateways that sent it. */
  lifetimes: Omit<Lifetimes, 'leaseMs'>;
  dispatches: Dispatch[];
  executions: Execution[];
  announced: number;
  /** A merchant was told `outcome_unknown` after a request was sent. */
  wasTold: boolean;
  /** The result that a merchant was told. */
  result: { words: string; isStored: boolean; atMs: number } | undefined;
  /** An operator or a lookup has said what became of the key, or may have. */
  wasResolved: boolean;
  /** A release may be written or not. */
  isUnsure: boolean;
}

/**
 * Judges a history by what the backend executed, what gateways saw of it, and what merchants and operators were told. It knows
 * neither records nor states.
 */
export class Checker {
  readonly violations: string[] = [];
  readonly excused = new Map<string, number>();
  readonly #options: CheckerOptions;
  readonly #keys = new Map<RecordId, Key>();
  readonly #requests = new Map<string, Request>();
  /** All results that the backend or an operator has given to a key. */
  readonly #results = new Map<RecordId, Set<string>>();
  readonly #excuses = new Map<RecordId, string>();
  readonly #sent = new Set<string>();
  readonly #again = new Set<string>();
  readonly #sentAgain = new Set<RecordId>();
  readonly #late = new Set<string>();
  readonly #committed = new Set<string>();
  /** Requests whose merchants were told that they were not executed. */
  readonly #toldFree = new Set<string>();

  constructor(options: CheckerOptions) {
    this.#options = options;
  }

  requested(request: string, what: Request): void {
    this.#requests.set(request, what);
  }

  /** From now on, a second execution of this key is not the gateway's mistake. */
  excuse(recordId: RecordId, why: string): void {
    this.#excuses.set(recordId, why);
  }

  /** A gateway says that it sends a second time. */
  announced(recordId: RecordId, request: string, nowMs: number): void {
    const key = this.#keyOf(recordId, nowMs);
    key.announced++;
    this.#again.add(request);
    this.#sentAgain.add(recordId);
    if (this.#differs(key, request, ({ operation }) => operation))
      this.#break(recordId, `${request} is sent again, and was another operation`);
  }

  hasAnnounced(recordId: RecordId): boolean {
    return this.#sentAgain.has(recordId);
  }

  /** A gateway says that it answers before the response is stored. */
  answersLate(request: string): void {
    this.#late.add(request);
  }

  /** A request leaves a gateway. */
  sending({ recordId, request }: Sent, { retentionMs, inDoubtRetentionMs }: Lifetimes, nowMs: number): void {
    const key = this.#keyOf(recordId, nowMs);
    if (this.#toldFree.has(request))
      this.#break(recordId, `${request} is sent after its merchant was told that it was not executed`);
    const open = openOf(key);
    const most = this.#options.maySendAgain ? key.announced : 0;
    if (open.length > most)
      this.#break(recordId, `${request} is sent after ${open.map((one) => one.request)}`);
    if (key.result?.isStored) this.#break(recordId, `${request} is sent after ${key.result.words} was told`);
    if (open.length === 0) {
      key.startMs = this.#requests.get(request)?.atMs ?? nowMs;
      key.sentMs = nowMs;
      key.lifetimes = { retentionMs, inDoubtRetentionMs };
    }
    // A restart can write other lifetimes, those of its gateway. Only the shorter ones are sure.
    key.lifetimes.retentionMs = Math.min(key.lifetimes.retentionMs, retentionMs);
    key.lifetimes.inDoubtRetentionMs = Math.min(key.lifetimes.inDoubtRetentionMs, inDoubtRetentionMs);
    key.dispatches.push({ request, decision: undefined, wasInDoubt: false, wasRefused: false, releases: 0 });
    this.#sent.add(request);
  }

  /** A transaction has executed the request, and stored its answer. */
  committed(sent: Sent, lifetimes: Lifetimes, response: BackendResponse, nowMs: number): void {
    this.sending(sent, lifetimes, nowMs);
    this.#committed.add(sent.request);
    this.ended(sent, { kind: 'complete', response }, NONE, nowMs);
  }

  /** What its gateway sees of it. */
  ended({ recordId, request }: Sent, exchange: Exchange, statuses: StatusPolicy, nowMs: number): void {
    const decision: Decision = decideFor(statuses, exchange, this.#again.has(request));
    if (exchange.kind === 'complete') this.#know(recordId, wordsOf(exchange.response));
    const key = this.#keyOf(recordId, nowMs);
    const dispatch = key.dispatches.find((one) => one.request === request);
    if (dispatch) {
      dispatch.decision = decision;
      dispatch.wasInDoubt ||= decision === 'in_doubt';
    }
    if (decision !== 'release') return;
    if (dispatch) dispatch.wasRefused = true;
    if (openOf(key).length === 0) key.wasTold = false;
  }

  /** What the backend's books say of the key. A key that is used again when its record may have expired is another transaction. */
  executionOf(recordId: RecordId, nowMs: number): Execution | undefined {
    return this.#keyOf(recordId, nowMs).executions.at(-1);
  }

  executed(recordId: RecordId, request: string, execution: Execution, nowMs: number): void {
    const key = this.#keyOf(recordId, nowMs);
    key.executions.push(execution);
    if (key.executions.length > 1) this.#break(recordId, `executed twice, the second time by ${request}`);
  }

  /**
   * An operator says what became of the key. From this moment it may be written. Returns what to call if it surely was not.
   *
   * @param completion what it gives to the key
   */
  resolving(recordId: RecordId, as: string, completion: string | undefined, nowMs: number): () => void {
    const key = this.#keyOf(recordId, nowMs);
    const { wasResolved, result, wasTold } = key;
    key.wasResolved = true;
    if (completion) this.#know(recordId, completion);
    if (as !== 'released') return () => {};
    const dispatches = [...key.dispatches];
    for (const dispatch of dispatches) dispatch.releases++;
    if (key.executions.length === 0) key.result = undefined;
    key.wasTold = false;
    key.isUnsure = true;
    return () => {
      for (const dispatch of dispatches) dispatch.releases--;
      if (dispatches.some(({ releases }) => releases > 0)) return;
      key.result ??= result;
      key.wasTold ||= wasTold;
      key.wasResolved = wasResolved;
    };
  }

  /** What a gateway does with the backend's answer is known later, if at all. */
  lookedUp(recordId: RecordId, answer: LookupAnswer, nowMs: number): void {
    const key = this.#keyOf(recordId, nowMs);
    if (answer.kind !== 'executed' && answer.kind !== 'not_executed') return;
    key.wasResolved = true;
    if (answer.kind === 'not_executed') {
      for (const dispatch of key.dispatches) dispatch.releases++;
      key.wasTold = false;
      key.isUnsure = true;
    } else if (answer.completion.kind === 'response')
      this.#know(recordId, wordsOf(answer.completion.response));
  }

  /** A handler's time limit answers its merchant `outcome_unknown`. The handler still runs. */
  toldEarly({ recordId, request }: Sent, nowMs: number): void {
    const key = this.#keyOf(recordId, nowMs);
    if (openOf(key).some((one) => one.request === request)) key.wasTold = true;
  }

  /** A merchant gets an answer. */
  told(recordId: RecordId, request: string, result: Result, nowMs: number): void {
    const key = this.#keyOf(recordId, nowMs);
    const beganMs = this.#requests.get(request)?.atMs ?? nowMs;
    const lost = () => {
      if (key.result?.isStored && key.result.atMs < beganMs)
        this.#break(recordId, `${request} got ${result.kind} after ${key.result.words} was told`);
    };
    const saysSent = result.kind === 'executed' && result.exchange.kind !== 'not_sent';
    const isUndecided = result.kind === 'in_flight' && this.#committed.has(request);
    const wasSent = this.#sent.has(request) && !isUndecided;
    if (FREE.test(result.kind) && !saysSent) this.#toldFree.add(request);
    const isDoubt =
      result.kind === 'in_doubt' || (result.kind === 'executed' && result.decision === 'in_doubt');
    if (isDoubt && this.#options.isNeverInDoubt)
      this.#break(recordId, `${request} got ${result.kind}, in doubt`);
    if (saysSent !== wasSent && !STORED.test(result.kind))
      this.#break(recordId, `${request} got ${result.kind}, and was ${wasSent ? '' : 'not '}sent`);
    switch (result.kind) {
      case 'replayed':
        this.#tellResult(key, recordId, request, wordsOf(result.response), true, nowMs);
        break;
      case 'tombstone':
        this.#tellResult(key, recordId, request, TOO_LARGE, true, nowMs);
        break;
      case 'in_doubt':
        lost();
        if (this.#options.isQuiet && openOf(key).length > 0 && !key.dispatches.some((one) => one.wasInDoubt))
          this.#break(recordId, `${request} got in_doubt, and nothing is`);
        // An answer to an earlier request may be about what was released meanwhile.
        if (openOf(key).length > 0 && beganMs >= key.sentMs) key.wasTold = true;
        break;
      case 'executed': {
        const { exchange, decision, stored } = result;
        if (decision === 'in_doubt' && openOf(key).some((one) => one.request === request)) key.wasTold = true;
        if (decision === 'complete' && !stored && !this.#late.has(request))
          this.#break(recordId, `${request} got its own response, which the store has refused`);
        if (decision !== 'complete') lost();
        else if (exchange.kind === 'complete')
          this.#tellResult(key, recordId, request, wordsOf(exchange.response), stored, nowMs);
        else this.#tellResult(key, recordId, request, TOO_LARGE, stored, nowMs);
      }
    }
  }

  #tellResult(
    key: Key,
    recordId: RecordId,
    request: string,
    words: string,
    isStored: boolean,
    nowMs: number,
  ): void {
    const known = key.result;
    const all = this.#results.get(recordId);
    if (this.#differs(key, request, ({ isOther }) => isOther))
      this.#break(recordId, `${request} got ${words}, and had another body`);
    if (isStored && NO_RESULTS.test(words))
      this.#break(recordId, `${request} got ${words}, which is no result`);
    if (words !== TOO_LARGE && !all?.has(words))
      this.#break(recordId, `${request} got ${words}, which neither the backend nor an operator gave`);
    if (known && known.words !== words) {
      // What is answered unstored may be in doubt, and be resolved or sent again.
      const mayDiffer = (key.wasResolved || key.announced > 0) && !(known.isStored && isStored);
      if (!mayDiffer) this.#break(recordId, `${request} got ${words}, and ${known.words} was told before`);
    }
    const { executions } = key;
    const isOther = executions.length > 0 && !executions.some(({ result }) => words.endsWith(result));
    if (isStored && words !== TOO_LARGE && isOther)
      this.#break(recordId, `${request} got ${words}, and the backend executed ${executions[0]?.result}`);
    // The first answer that is stored is the one that has to last.
    if (!known?.isStored && key.dispatches.length > 0) key.result = { words, isStored, atMs: nowMs };
  }

  /** Whether the request differs from all that were sent and may have been executed. */
  #differs(key: Key, request: string, in_: (request: Request) => unknown): boolean {
    const own = this.#requests.get(request);
    const sent = openOf(key).flatMap((one) => this.#requests.get(one.request) ?? []);
    return own !== undefined && sent.length > 0 && sent.every((one) => in_(one) !== in_(own));
  }

  /** Whether the gateway of this request has seen its result. */
  isKnown(recordId: RecordId, request: string): boolean {
    const dispatches = this.#keys.get(recordId)?.dispatches ?? [];
    return dispatches.some((one) => one.request === request && one.decision === 'complete');
  }

  /** Whether something may have been sent, so that the key may be in doubt. */
  mayBeOpen(recordId: RecordId): boolean {
    const key = this.#keys.get(recordId);
    if (!key) return false;
    return key.isUnsure || key.announced > 0 || key.dispatches.some(({ wasRefused }) => !wasRefused);
  }

  /** What judgements from now on can depend on, except times and how often gateways have announced that they send again. */
  stateOf(recordId: RecordId): string {
    const { dispatches = [], announced = 0, result, wasResolved = false } = this.#keys.get(recordId) ?? {};
    const sent = dispatches.map(({ request, wasRefused, releases }) => [request, wasRefused, releases]);
    return JSON.stringify([sent, announced > 0, result?.words, result?.isStored, wasResolved]);
  }

  #know(recordId: RecordId, words: string): void {
    const all = this.#results.get(recordId);
    if (all) all.add(words);
    else this.#results.set(recordId, new Set([words]));
  }

  #keyOf(recordId: RecordId, nowMs: number): Key {
    let key = this.#keys.get(recordId);
    if (key && (key.dispatches.length === 0 || nowMs < key.startMs + this.#livesMs(key))) return key;
    const isUnsure = this.mayBeOpen(recordId);
    key = {
      ...{ startMs: nowMs, sentMs: nowMs, dispatches: [], executions: [], announced: 0 },
      lifetimes: { retentionMs: 0, inDoubtRetentionMs: 0 },
      ...{ wasTold: false, result: undefined, wasResolved: false, isUnsure },
    };
    this.#keys.set(recordId, key);
    return key;
  }

  #livesMs({ wasTold, lifetimes: { retentionMs, inDoubtRetentionMs } }: Key): number {
    return (wasTold ? inDoubtRetentionMs : retentionMs) - this.#options.slackMs;
  }

  #break(recordId: RecordId, what: string): void {
    const excuse = this.#excuses.get(recordId);
    if (excuse) this.excused.set(excuse, (this.excused.get(excuse) ?? 0) + 1);
    else this.violations.push(what);
  }
}

/** Requests that may have been executed, as far as anybody knows. */
const openOf = ({ dispatches }: Key): Dispatch[] =>
  dispatches.filter(({ wasRefused, releases }) => !wasRefused && releases === 0);

/** Statuses with which a backend says that nothing was done, or cannot know. */
const NO_RESULTS = /^(?:401|429|502|503|504|520|522|524) |urn:oncegate:problem:/;
/** What says that a request was not executed. */
const FREE = /^(?:executed|store_unavailable|overloaded|closing)$/;
const NONE: StatusPolicy = { release: [], unknown: [] };
/** What a request gets that was not sent, and one whose own result was refused. */
const STORED = /^(?:replayed|tombstone)$/;
const TOO_LARGE = 'a response that was too large';

function wordsOf({ status, body }: { status: number; body: Buffer }): string {
  const words = `${status} ${body}`;
  return words.includes('urn:oncegate:problem:response_not_stored') ? TOO_LARGE : words;
}
