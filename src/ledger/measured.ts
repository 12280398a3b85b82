import type { RecordId } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import {
  type StoreHealth,
  StoreUnavailable,
  type UnreadableReason,
  UnreadableRecord,
} from '../store/contract.ts';
import type { Store } from './ledger.ts';

export interface StoreObserver {
  /** Called once for each finished command. `failed`: it threw, or a health check was not ok. `ms`: how long it took. */
  commandEnded(command: string, result: 'ok' | 'failed', ms: number): void;
  /** Called for each command that failed because its record cannot be read. `why`: for the operator. */
  unreadable(recordId: RecordId, reason: UnreadableReason, why: string): void;
}

/** The methods that are timed, and the names of their commands. `countDoubts` is not among them, because it takes many. */
export const TIMED = {
  ...{ start: 'start', peek: 'peek', restart: 'restart', renew: 'renew', complete: 'complete' },
  ...{ release: 'release', markInDoubt: 'in_doubt', takeBack: 'release', aliveForMs: 'peek' },
  ...{ get: 'get', isOwnerGone: 'peek', expiresInMs: 'expires_in', list: 'list', resolve: 'resolve' },
  ...{ audit: 'audit', readMark: 'read_mark', mark: 'mark', health: 'health' },
} as const satisfies Partial<Record<keyof Store, string>>;

type Timed = keyof typeof TIMED;

/** These commands answer no merchant, and some read no record. Their caller gets the error, and it is not counted. */
const NOT_FOR_MERCHANTS: ReadonlySet<Timed> = new Set(['expiresInMs', 'list', 'audit', 'readMark', 'mark']);

/**
 * Wraps a store and reports the result and duration of each command.
 *
 * @param refusal why starts and restarts must not be sent to the store now, although it may take them
 */
export function measured(
  store: Store,
  clock: Clock,
  observer: StoreObserver,
  refusal: () => string | undefined = () => undefined,
): Store {
  const timed = (method: Timed) => {
    const send = store[method].bind(store) as (...args: unknown[]) => Promise<unknown>;
    const mayBeRefused = method === 'start' || method === 'restart';
    // Without an async function, which would add a promise to each command.
    return (...args: unknown[]) => {
      const startedMs = clock.monotonicMs();
      const ended = (isOk: boolean) =>
        observer.commandEnded(TIMED[method], isOk ? 'ok' : 'failed', clock.monotonicMs() - startedMs);
      const why = mayBeRefused ? refusal() : undefined;
      const refused = why === undefined ? undefined : new StoreUnavailable(why, { maybeWritten: false });
      return (refused ? Promise.reject(refused) : send(...args)).then(
        (answer) => {
          ended(method !== 'health' || (answer as StoreHealth).ok);
          return answer;
        },
        (error: unknown) => {
          ended(false);
          const [subject] = args as [RecordId | { recordId: RecordId }];
          const recordId = typeof subject === 'object' ? subject.recordId : subject;
          if (error instanceof UnreadableRecord && !NOT_FOR_MERCHANTS.has(method))
            observer.unreadable(recordId, error.reason, error.message);
          throw error;
        },
      );
    };
  };
  const methods = Object.keys(TIMED) as Timed[];
  return {
    get usage() {
      return store.usage;
    },
    get refusing() {
      return store.refusing ?? refusal();
    },
    get connection() {
      return store.connection;
    },
    onConnected: (act) => store.onConnected(act),
    countDoubts: (options) => store.countDoubts(options),
    close: () => store.close(),
    ...(Object.fromEntries(methods.map((method) => [method, timed(method)])) as Pick<Store, Timed>),
  };
}
