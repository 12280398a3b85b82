import { answerOf } from '../../src/idempotency/answer.ts';
import type { Result } from '../../src/idempotency/call.ts';
import { recordIdOf } from '../../src/ledger/record-id.ts';
import type { Fingerprint, RecordId } from '../../src/lib/brands.ts';
import type { Exchange } from '../../src/lib/exchange.ts';
import { type Problem, problemDocument } from '../../src/lib/problem.ts';
import { HOPS } from '../../src/requests/fields.ts';
import { addHop, hopOf } from '../../src/requests/hops.ts';
import type { Sent } from './backend.ts';
import type { Checker } from './checker.ts';
import type { Dice } from './dice.ts';
import type { Gateway } from './gateway.ts';
import { FINGERPRINTS, KEYS, keyNumber } from './keys.ts';
import type { Machine, Process } from './machine.ts';
import type { Network, StoreServers } from './store.ts';
import type { Timeline } from './timeline.ts';

/** Where the processes of one gateway run, one after the other. */
export interface Host {
  machine: Machine;
  layer: Layer;
  gateway: Gateway | undefined;
  network: Network;
  starts: number;
  /** Where its next process is started. */
  store: StoreServers;
}

/** A request on its way to a layer. */
export interface Question {
  request: string;
  key: string;
  fingerprint: Fingerprint;
  operation: string;
  waitMs: number;
  /** The one that gets it, or the next one that runs. */
  gateway: number;
  /** After this time, whoever asks closes the connection. */
  leavesAfterMs: number;
  /** The layers that it has passed. */
  hops?: string | undefined;
}

export interface LayerParts {
  name: string;
  checker: Checker;
  /** The layer that asks this one, unless merchants do. */
  front: Layer | undefined;
  timeline: Timeline;
  dice: Dice;
  /** Nothing is late on the way here. */
  isCalm(): boolean;
  say(what: string): void;
  event(name: string): void;
  /** The store that serves now. */
  serving(): StoreServers;
}

/** Gateways that share a store and the name of their layer. Merchants ask the first layer, and its gateways the second. */
export class Layer {
  readonly name: string;
  readonly checker: Checker;
  readonly hosts: Host[] = [];
  /** The record ids of {@link KEYS}. */
  readonly recordIds: readonly RecordId[];
  /** The process that got each request. */
  readonly handlers = new Map<string, Process>();
  readonly #parts: LayerParts;
  /** Requests from the layer in front, until they are answered; and those that a process handles, also when nobody waits any more. */
  readonly #underWay = new Map<string, number>();
  readonly #handled = new Set<{ key: string; process: Process }>();

  constructor(parts: LayerParts) {
    this.#parts = parts;
    this.name = parts.name;
    this.checker = parts.checker;
    this.recordIds = KEYS.map((key) => recordIdOf(parts.name, 'M-1', key));
  }

  get serving(): StoreServers {
    return this.#parts.serving();
  }

  /** The gateway of this number, or the next one that runs. */
  gatewayAt(number: number): Gateway | undefined {
    for (let turn = 0; turn < this.hosts.length; turn++) {
      const gateway = this.hosts[(number + turn) % this.hosts.length]?.gateway;
      if (gateway && !gateway.process.isDead) return gateway;
    }
    return undefined;
  }

  /** From now on, a second execution of this key is no mistake of this layer, and of none in front of it. */
  excuse(key: string, why: string): void {
    this.checker.excuse(this.recordIds[keyNumber(key)] as RecordId, why);
    this.#parts.front?.excuse(key, why);
  }

  /** @param end gets the answer, unless there was none or whoever asks has left */
  ask(question: Question, end: (result: Result | undefined, refusal?: Problem) => void): void {
    const { checker, timeline, say, event } = this.#parts;
    const { request, key, fingerprint, leavesAfterMs, gateway: number, hops, ...call } = question;
    const gateway = this.gatewayAt(number);
    if (!gateway) {
      end(undefined);
      return;
    }
    const { process } = gateway;
    const store = this.hosts.find((host) => host.gateway === gateway)?.store as StoreServers;
    const fields = { headers: hops === undefined ? {} : { [HOPS]: hops } };
    const loop = addHop(fields as never, hopOf(this.name, store.id));
    if (loop) {
      event('refused loop');
      end(undefined, loop);
      return;
    }
    const gone = new AbortController();
    let isOver = false;
    const cancel = timeline.after(leavesAfterMs, () => {
      isOver = true;
      say(`${request} leaves`);
      process.machine.run(process, () => gone.abort());
      end(undefined);
    });
    this.handlers.set(request, process);
    const isOther = fingerprint === FINGERPRINTS[1];
    checker.requested(request, { atMs: timeline.nowMs, isOther, operation: call.operation });
    say(`${request} → ${process.name}`);
    const recordId = recordIdOf(this.name, 'M-1', key);
    const named = { recordId, key, fingerprint, merchant: 'M-1', requestId: request, gone: gone.signal };
    const handled = { key, process };
    this.#handled.add(handled);
    process.machine.run(process, () => {
      void gateway.handle({ ...call, ...named }, fields.headers[HOPS]).then((result) => {
        this.#handled.delete(handled);
        if (process.isDead || isOver) return;
        isOver = true;
        cancel();
        event(`told ${result.kind}`);
        say(`${request} ← ${describe(result)}`);
        // A gateway that has not been moved yet answers from a store that does not serve any more.
        const isOld =
          result.kind === 'in_doubt' || (result.kind === 'executed' && result.exchange.kind === 'not_sent');
        const isStale = store !== this.serving && isOld;
        if (result.kind !== 'mismatch' && !isStale) checker.told(recordId, request, result, timeline.nowMs);
        end(result);
      });
    });
  }

  /** Whether a request with this key is on its way here, or being handled. */
  isUnderWay(key: string): boolean {
    const isHandled = [...this.#handled].some((one) => one.key === key && !one.process.isDead);
    return isHandled || (this.#underWay.get(key) ?? 0) > 0;
  }

  /** A gateway of the layer in front of this one sends a request, and gets what HTTP would make of the answer. */
  receive(sent: Sent, answer: (exchange: Exchange) => void): void {
    const { timeline, dice, isCalm } = this.#parts;
    const { request, key, fingerprint, operation, hops } = sent;
    const count = (number: number) => this.#underWay.set(key, (this.#underWay.get(key) ?? 0) + number);
    count(1);
    const wireMs = dice.chance(0.9) || isCalm() ? 3 : dice.pick([3000, 20_000]);
    const question = {
      ...{ request, key, fingerprint, operation, hops },
      ...{ waitMs: dice.pick([0, 10_000]), gateway: dice.between(0, this.hosts.length - 1) },
      leavesAfterMs: dice.chance(0.1) && !isCalm() ? dice.next() * 8000 : 20_000,
    };
    timeline.after(0.1 + dice.next() * wireMs, () =>
      this.ask(question, (result, refusal) => {
        count(-1);
        const exchange = refusal ? ofProblem(refusal, request) : exchangeOf(result, request);
        timeline.after(0.1 + dice.next() * 3, () => answer(exchange));
      }),
    );
  }
}

function exchangeOf(result: Result | undefined, request: string): Exchange {
  const answer = result && answerOf(result);
  if (!answer) return { kind: 'unknown', reason: 'reset', timedOut: false };
  if ('problem' in answer) return ofProblem(answer.problem, request);
  return 'stream' in answer ? answer.stream : { kind: 'complete', response: answer.response };
}

function ofProblem(problem: Problem, request: string): Exchange {
  const { status, headers, body } = problemDocument(problem, request);
  const response = { status, headers: Object.entries(headers).flat(), body: Buffer.from(body) };
  return { kind: 'complete', response };
}

export function describe(result: Result): string {
  if (result.kind === 'replayed') return `replayed ${result.response.status} ${result.response.body}`;
  if (result.kind !== 'executed') return result.kind;
  const { exchange, decision, stored } = result;
  const what =
    exchange.kind === 'complete' ? `${exchange.response.status} ${exchange.response.body}` : exchange.kind;
  return `executed ${what}, ${decision}${stored ? ', stored' : ''}`;
}
