import type { RecordId } from '../../src/lib/brands.ts';
import { type Clock, pause } from '../../src/lib/clock.ts';
import type { TransactionAnswer } from '../../src/middleware/respond.ts';
import type { HandlerTransaction } from '../../src/middleware/transactions/handler-transaction.ts';
import type {
  Create,
  Replace,
  SqlClient,
  Transaction,
  TransactionOptions,
  Transactions,
} from '../../src/store/register.ts';
import { type Revision, StoreUnavailable } from '../../src/store/types.ts';
import type { MemoryRegister } from '../support/memory-register.ts';
import type { Backend, Sent } from './backend.ts';
import type { Dice } from './dice.ts';
import type { Process } from './machine.ts';
import type { Timeline } from './timeline.ts';

/** How often the server looks whether the connection of a transaction is closed, or silent for too long. */
const LOOKS_EVERY_MS = 1000;
const conflict = () => Object.assign(new Error('could not serialize access'), { code: '40001' });

export interface TransactionParts {
  process: Process;
  timeline: Timeline;
  /** Sends a statement to the server. */
  send<T>(name: string, execute: (server: Server) => Promise<T>): Promise<T>;
}

interface Server {
  readonly register: MemoryRegister;
  /** The disk is full. */
  readonly refuses: string | undefined;
}

/** A transaction on its connection. The application's books are in the same database. */
class Session implements SqlClient {
  readonly register: MemoryRegister;
  readonly #parts: TransactionParts;
  #spokeMs = 0;
  /** What the server says of it. While it is being committed, the end of its connection does not end it. */
  #state: 'open' | 'committing' | 'over' = 'open';
  isClosed = false;
  /** What the application's own statement does when it is committed. */
  effect: () => void = () => {};
  /** How long its COMMIT waits for a disk or a standby. */
  commitMs = 0;
  /** Its COMMIT is a serialization failure. */
  conflicts = false;

  constructor(register: MemoryRegister, idleMs: number, parts: TransactionParts) {
    this.register = register;
    this.#parts = parts;
    this.#speak();
    this.#watch(idleMs);
  }

  #watch(idleMs: number): void {
    const { timeline, process } = this.#parts;
    timeline.after(LOOKS_EVERY_MS, () => {
      if (this.#state !== 'open') return;
      const isSilent = timeline.nowMs - this.#spokeMs > idleMs;
      if (this.isClosed || process.isDead || isSilent) this.end(false);
      else this.#watch(idleMs);
    });
  }

  #speak(): void {
    if (this.#state !== 'open') throw new Error('the connection was closed');
    this.#spokeMs = this.#parts.timeline.nowMs;
  }

  run<T>(name: string, execute: (server: Server) => T): Promise<T> {
    return this.#parts.send(name, async (server) => {
      this.#speak();
      return execute(server);
    });
  }

  query = async () => {};

  async commit(): Promise<void> {
    this.#speak();
    this.#state = 'committing';
    await new Promise<void>((resolve) => this.#parts.timeline.after(this.commitMs, resolve));
    this.end(!this.conflicts);
    if (this.conflicts) throw conflict();
  }

  end(isCommitted: boolean): void {
    if (this.#state === 'over') return;
    this.#state = 'over';
    this.register.end(this, isCommitted);
    if (isCommitted) this.effect();
  }
}

/** Transactions over the network, as those of PostgreSQL. */
export class NetworkTransactions implements Transactions {
  readonly #parts: TransactionParts;

  constructor(parts: TransactionParts) {
    this.#parts = parts;
  }

  async begin({ idleMs }: TransactionOptions): Promise<Transaction> {
    const { send } = this.#parts;
    const open = async ({ register }: Server) => new Session(register, idleMs, this.#parts);
    const session = await send('begin', open);
    let isSent = false;
    const commit = async () => {
      isSent = true;
      try {
        await send('commit', () => session.commit());
      } catch (error) {
        session.isClosed = true;
        // Whatever else the connection says, the COMMIT may have been executed before.
        throw (error as { code?: string }).code ? error : new StoreUnavailable('no answer to COMMIT');
      }
    };
    const rollback = async () => {
      if (!isSent) await send('rollback', async () => session.end(false)).catch(() => {});
      session.isClosed = true;
    };
    return { client: session, commit, rollback };
  }

  claim(client: SqlClient, id: RecordId, write: Create): Promise<boolean> {
    const session = client as Session;
    return session.run('claim', ({ refuses }) => {
      if (refuses) throw new StoreUnavailable('the store is full', { maybeWritten: false });
      return session.register.claim(session, id, write);
    });
  }

  complete(client: SqlClient, id: RecordId, expected: Revision, write: Replace): Promise<void> {
    const session = client as Session;
    return session.run('complete', () => session.register.complete(session, id, expected, write));
  }
}

/** The application's, which has the records too. */
export interface Database {
  transactions: NetworkTransactions;
  books: Pick<Backend, 'isCalm' | 'newResult' | 'execute'>;
}

export interface HandlerParts {
  database: Database;
  timeoutMs: number;
  clock: Clock;
  dice: Dice;
  /** The transaction has taken effect. */
  committed(answer: TransactionAnswer): void;
  event(name: string): void;
}

/** A handler of an application with a database of its own, that pays in one transaction: in ours, or in one of its library. */
export function pay(handled: HandlerTransaction, sent: Sent, parts: HandlerParts): Promise<unknown> {
  const { database, timeoutMs, clock, dice, committed, event } = parts;
  const { transactions, books } = database;
  const behaviour = dice.pick(books.isCalm ? ['pays'] : BEHAVIOURS);
  const work = async (client: SqlClient): Promise<TransactionAnswer> => {
    const session = client as Session;
    if (behaviour === 'breaks') throw new Error('the handler breaks');
    for (let round = 0; behaviour === 'is slow' && round < 4; round++) {
      await pause(clock, timeoutMs / 3);
      await session.run('statement', () => {});
    }
    const pays = behaviour !== 'refuses';
    const json = books.newResult(pays ? 'payout' : 'nothing');
    const answer = { status: pays ? 201 : 422, json };
    await session.run('pay', () => {
      session.effect = () => {
        committed(answer);
        if (pays) books.execute(sent, JSON.stringify(json));
      };
    });
    if (behaviour === 'conflicts' && dice.chance(0.5)) throw conflict();
    session.conflicts = behaviour === 'conflicts' && dice.chance(0.5);
    if (behaviour === 'commits slowly') session.commitMs = dice.next() * 8000;
    return answer;
  };
  const inLibrary = async () => {
    const transaction = await transactions.begin({ isolation: 'read committed', idleMs: timeoutMs });
    try {
      await handled.startIn(transaction.client);
      await handled.completeIn(transaction.client, await work(transaction.client));
      await transaction.commit();
    } finally {
      await transaction.rollback();
    }
  };
  const isOurs = dice.chance(0.6);
  event(`transaction of ${isOurs ? 'ours' : 'a library'}`);
  const ended = isOurs ? handled.run(work as never) : inLibrary();
  return behaviour === 'ends early' ? Promise.race([ended, undefined]) : ended;
}

const BEHAVIOURS = [
  ...['pays', 'pays', 'pays', 'breaks', 'refuses', 'conflicts', 'is slow', 'commits slowly', 'ends early'],
];
