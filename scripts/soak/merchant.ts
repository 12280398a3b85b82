import { randomUUID } from 'node:crypto';
import type { Pool } from 'undici';

/** Kinds of correct answers; every other answer is `wrong`. */
export type Answer = { kind: 'balances' | 'payouts' | 'replays' } | { kind: 'wrong'; what: string };

interface Got {
  status: number;
  replayed: boolean;
  text: string;
}

interface Paid {
  key: string;
  body: string;
  atMs: number;
}

const REMEMBERED = 2_000;
const PAYOUT = '{"action":"withdraw","amount":0.01,"bank_code":"058","account_number":"0123456789"}';

/** A merchant who remembers some payouts and repeats them. */
export class Merchant {
  readonly #pool: Pool;
  readonly #authorization: string;
  readonly #repeatWithinMs: number;
  readonly #paid: Paid[] = [];

  constructor(pool: Pool, secret: string, retentionMs: number) {
    this.#pool = pool;
    this.#authorization = `Bearer ${secret}`;
    // Well before the record expires.
    this.#repeatWithinMs = retentionMs / 2;
  }

  async balance(): Promise<Answer> {
    const got = await this.#ask('GET', '/v2/get_balance');
    if (got.status === 200 && got.text.startsWith('{"success":true')) return { kind: 'balances' };
    return wrong('a balance', got);
  }

  async pay(key: string): Promise<Answer> {
    const got = await this.#withdraw(key);
    if (got.status !== 201 || got.replayed) return wrong('a payout', got);
    const paid = { key, body: got.text, atMs: performance.now() };
    if (this.#paid.length < REMEMBERED) this.#paid.push(paid);
    else this.#paid[Math.floor(Math.random() * REMEMBERED)] = paid;
    return { kind: 'payouts' };
  }

  /** Repeats a payout, which must get the same answer. */
  async repeat(): Promise<Answer> {
    const paid = this.#paid[Math.floor(Math.random() * this.#paid.length)];
    if (!paid || performance.now() - paid.atMs > this.#repeatWithinMs) return await this.pay(randomUUID());
    const got = await this.#withdraw(paid.key);
    if (got.status === 201 && got.replayed && got.text === paid.body) return { kind: 'replays' };
    return wrong('a repeated payout', got);
  }

  /** Sends a payout twice at once: one is executed, and both get its answer. */
  async payTwice(): Promise<Answer[]> {
    const key = randomUUID();
    const both = await Promise.all([this.#withdraw(key), this.#withdraw(key)]);
    const [one, other] = both;
    const same = one.text === other.text && one.replayed !== other.replayed;
    if (same && both.every(({ status }) => status === 201)) return [{ kind: 'payouts' }, { kind: 'replays' }];
    return [wrong('one of two at once', one), wrong('one of two at once', other)];
  }

  async #withdraw(key: string): Promise<Got> {
    return await this.#ask('POST', '/v1/index.php', key);
  }

  async #ask(method: 'GET' | 'POST', path: string, key?: string): Promise<Got> {
    try {
      const answer = await this.#pool.request({
        method,
        path,
        headers: {
          authorization: this.#authorization,
          ...(key === undefined ? {} : { 'x-service-idempotency': key, 'content-type': 'application/json' }),
        },
        ...(key === undefined ? {} : { body: PAYOUT }),
      });
      const replayed = answer.headers['idempotent-replayed'] === 'true';
      return { status: answer.statusCode, replayed, text: await answer.body.text() };
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      return { status: 0, replayed: false, text: code ?? message };
    }
  }
}

function wrong(what: string, { status, replayed, text }: Got): Answer {
  const code = status === 0 ? text : (/"code":"(\w+)"/.exec(text)?.[1] ?? '');
  return {
    kind: 'wrong',
    what: `${what} was answered ${status}${replayed ? ' replayed' : ''} ${code}`.trim(),
  };
}
