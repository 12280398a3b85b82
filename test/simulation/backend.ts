import type { Fingerprint, RecordId } from '../../src/lib/brands.ts';
import type { BackendResponse, Exchange, LookupAnswer } from '../../src/lib/exchange.ts';
import type { Dice } from './dice.ts';
import type { Timeline } from './timeline.ts';

/** A request that a gateway has sent. */
export interface Sent {
  /** The record id in that gateway's store. */
  recordId: RecordId;
  key: string;
  /** Names the merchant's request. */
  request: string;
  fingerprint: Fingerprint;
  operation: string;
  /** The layers that it has passed. */
  hops: string;
}

/** One payout in the backend's books. */
export interface Execution {
  request: string;
  atMs: number;
  /** The body that tells it from all others. */
  result: string;
}

/** What the backend does with one request. */
const BEHAVIOURS = {
  pays: 60,
  'pays later than everyone waits': 5,
  'refuses before it pays': 4,
  'refuses after it has paid': 3,
  'has no time': 3,
  'fails before it pays': 3,
  'fails after it has paid': 3,
  'a proxy gives up before': 3,
  'a proxy gives up': 3,
  'resets before it pays': 4,
  'resets while it pays': 4,
  'resets after it has paid': 4,
  'answers too much': 2,
  'cuts its answer': 2,
  'never answers': 2,
  'pays and never answers': 2,
} as const;

export type Behaviour = keyof typeof BEHAVIOURS;
export type Weights = Partial<Record<Behaviour, number>>;

export interface BackendPlan {
  /** Executes each key once, and answers the same again. */
  isIdempotent: boolean;
  /** Longest time that a request is under way to it, and that it works. */
  latestMs: number;
  /** Pays at once, and nothing else. */
  isCalm: boolean;
  /** How often it does what, in relation to each other. Default: everything. */
  weights?: Weights | undefined;
  /** What it does with the first requests, and for how long it works at each. */
  first?: readonly (readonly [Behaviour, workMs: number])[];
}

/** The legacy system that can pay twice, and its books. */
export class Backend {
  /** The executions by idempotency key. */
  readonly executions = new Map<string, Execution[]>();
  #plan: BackendPlan;
  readonly #timeline: Timeline;
  readonly #dice: Dice;
  readonly #underWay = new Map<string, number>();
  readonly #weighted: [Behaviour, number][];
  readonly #weight: number;
  /** Keys that an idempotent backend works on, and their responses. */
  readonly #known = new Map<string, { response: BackendResponse | undefined }>();
  #results = 0;
  #received = 0;
  onExecuted: (sent: Sent, execution: Execution) => void = () => {};

  constructor(plan: BackendPlan, timeline: Timeline, dice: Dice) {
    this.#plan = plan;
    this.#timeline = timeline;
    this.#dice = dice;
    this.#weighted = Object.entries(plan.weights ?? BEHAVIOURS) as [Behaviour, number][];
    this.#weight = this.#weighted.reduce((sum, [, weight]) => sum + weight, 0);
  }

  get isCalm(): boolean {
    return this.#plan.isCalm;
  }

  /** From now on it pays at once, and nothing else. */
  calmDown(): void {
    this.#plan = { ...this.#plan, isCalm: true };
  }

  /** Requests with this key that may still be executed. */
  isUnderWay(key: string): boolean {
    return (this.#underWay.get(key) ?? 0) > 0;
  }

  /** @param answer called with what the gateway sees, if it still runs */
  receive(sent: Sent, answer: (exchange: Exchange) => void): void {
    const { key } = sent;
    const first = this.#plan.first?.[this.#received++];
    const behaviour = first?.[0] ?? (this.#plan.isCalm ? 'pays' : this.#behaviour());
    const add = (number: number) =>
      this.#underWay.set(key, Math.max(0, (this.#underWay.get(key) ?? 0) + number));
    add(1);
    this.#timeline.after(this.#wireMs(), () => {
      this.#work(sent, behaviour, answer, () => add(-1), first?.[1]);
    });
  }

  #behaviour(): Behaviour {
    let left = this.#dice.next() * this.#weight;
    for (const [behaviour, weight] of this.#weighted) {
      left -= weight;
      if (left < 0) return behaviour;
    }
    return 'pays';
  }

  /** How long a request is under way. Mostly short, but one that was handed to the kernel may arrive long after. */
  #wireMs(): number {
    const dice = this.#dice.next();
    if (this.#plan.isCalm || dice < 0.93) return 0.1 + this.#dice.next() * 3;
    return dice < 0.97 ? this.#dice.next() * 3000 : (this.#dice.next() * this.#plan.latestMs) / 2;
  }

  #workMs(): number {
    const dice = this.#dice.next();
    if (this.#plan.isCalm || dice < 0.7) return 1 + this.#dice.next() * 20;
    return this.#dice.next() * (dice < 0.9 ? 3000 : 14_000);
  }

  #work(
    sent: Sent,
    behaviour: Behaviour,
    answer: (exchange: Exchange) => void,
    ended: () => void,
    givenMs: number | undefined,
  ): void {
    const { key } = sent;
    const known = this.#known.get(key);
    if (this.#plan.isIdempotent && known) {
      ended();
      const first = known.response ?? {
        status: 409,
        headers: [],
        body: Buffer.from('the first one still runs'),
      };
      this.#timeline.after(2, () => answer({ kind: 'complete', response: first }));
      return;
    }
    const pays = !/ before|has no time|^never/.test(behaviour);
    // What an idempotent backend has answered to a key is its answer for ever.
    const isFinal = pays || /^(?:refuses|fails)/.test(behaviour);
    if (isFinal) this.#known.set(key, { response: undefined });
    const isLate = behaviour === 'pays later than everyone waits';
    const workMs = givenMs ?? (isLate ? (this.#dice.next() * this.#plan.latestMs) / 2 : this.#workMs());
    if (behaviour === 'resets while it pays') this.#timeline.after(workMs / 2, () => answer(RESET));
    this.#timeline.after(workMs, () => {
      ended();
      const result = this.newResult(pays ? 'payout' : 'nothing');
      if (pays) this.execute(sent, result);
      const response = { status: STATUS[behaviour] ?? 201, headers: [], body: Buffer.from(result) };
      const first = this.#known.get(key);
      if (isFinal && first)
        first.response = { ...response, status: response.status === 504 ? 201 : response.status };
      const exchange = exchangeOf(behaviour, response);
      if (exchange) this.#timeline.after(0.1 + this.#dice.next() * 3, () => answer(exchange));
    });
  }

  /** A text that no other result has. */
  newResult(what: 'payout' | 'nothing'): string {
    return `${what} ${++this.#results}`;
  }

  execute(sent: Sent, result: string): void {
    const execution = { request: sent.request, atMs: this.#timeline.nowMs, result };
    const all = this.executions.get(sent.key);
    if (all) all.push(execution);
    else this.executions.set(sent.key, [execution]);
    this.onExecuted(sent, execution);
  }

  /** What a lookup gets. @param execution what its books say of the key */
  ask(execution: Execution | undefined): LookupAnswer {
    const said = 'the books';
    const dice = this.#plan.isCalm ? 1 : this.#dice.next();
    if (dice < 0.1) return { kind: 'failed', said };
    if (dice < 0.15) return { kind: 'undecided', said };
    if (!execution) return { kind: 'not_executed', said };
    return { kind: 'executed', said, completion: { kind: 'response', response: responseOf(execution) } };
  }
}

/** What an operator or a lookup completes a key with. */
export const responseOf = ({ result }: Pick<Execution, 'result'>): BackendResponse => ({
  ...{ status: 201, headers: [], body: Buffer.from(result) },
});

const STATUS: Partial<Record<Behaviour, number>> = {
  'refuses before it pays': 400,
  'refuses after it has paid': 422,
  'has no time': 429,
  'fails before it pays': 500,
  'fails after it has paid': 500,
  'a proxy gives up before': 503,
  'a proxy gives up': 504,
};

export const RESET: Exchange = { kind: 'unknown', reason: 'reset', timedOut: false };

/** How the exchange ends, if the backend ends it at all. */
function exchangeOf(behaviour: Behaviour, response: BackendResponse): Exchange | undefined {
  if (/never|while it pays/.test(behaviour)) return undefined;
  if (behaviour.startsWith('resets') || behaviour === 'cuts its answer') return RESET;
  if (behaviour !== 'answers too much') return { kind: 'complete', response };
  const body = { closed: true, destroy() {} };
  return { kind: 'oversize', status: 201, headers: [], body: body as never };
}
