import { KeyLocked, type SqlClient } from '../../store/register.ts';
import { KeyTaken } from '../refusals.ts';
import type { TransactionAnswer } from '../respond.ts';
import type { Inserted, TransactionKey } from './transaction-key.ts';

/** `startIn` and `completeIn`: the application begins and commits the transaction, by a library of its own. */
export class LibraryTransaction {
  readonly #key: TransactionKey;
  /** A claim was refused: another request has the key. */
  isTaken = false;

  constructor(key: TransactionKey) {
    this.#key = key;
  }

  /** See {@link Idempotency.startIn}. */
  async startIn(client: SqlClient): Promise<void> {
    // The attempt before was not committed.
    this.#key.notCommitting();
    try {
      if (await this.#key.claimIn(client)) return;
    } catch (error) {
      if (!(error instanceof KeyLocked)) throw error;
    }
    this.isTaken = true;
    throw new KeyTaken();
  }

  /** See {@link Idempotency.completeIn}. */
  async completeIn(client: SqlClient, answer: TransactionAnswer): Promise<void> {
    const { claim } = this.#key;
    if (!claim?.record)
      throw new TypeError('idempotency: completeIn needs a startIn before it in the same transaction');
    await this.#key.completeIn(client, claim as Inserted, answer);
  }
}
