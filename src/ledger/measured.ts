import type { RecordId } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import { type StoreHealth, StoreUnavailable, UnreadableRecord } from '../store/types.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Store } from './ledger.ts';

/** The methods that are timed, and the names of their commands. `countDoubts` is not among them, because it takes many. */
export const TIMED = {
  ...{ start: 'start', peek: 'peek', restart: 'restart', renew: 'renew', complete: 'complete' },
  ...{ release: 'release', leaveInDoubt: 'in_doubt', takeBack: 'release', aliveForMs: 'peek' },
  ...{ get: 'get', isOwnerGone: 'peek', hasLivingOwner: 'peek', expiresInMs: 'expires_in', list: 'list' },
  ...{ resolve: 'resolve', audit: 'audit', readIdentity: 'read_mark', visit: 'mark', health: 'health' },
} as const satisfies Partial<Record<keyof Store, string>>;

type Timed = keyof typeof TIMED;

/** These commands answer no merchant, and some read no record. Their caller gets the error, and it is not counted. */
const NOT_FOR_MERCHANTS: ReadonlySet<Timed> = new Set([
  'expiresInMs',
  'list',
  'audit',
  'readIdentity',
  'visit',
]);

/**
 * Wraps a store, and tells the result and duration of each command, and which record cannot be read.
 *
 * @param refusal why starts and restarts must not be sent to the store now, although it may take them: those of one record, or all
 * @param failed called with the start of a command that the store has not answered, or has refused
 */
export function measured(
  store: Store,
  clock: Clock,
  emit: Emit,
  refusal: (recordId?: RecordId) => string | undefined = () => undefined,
  failed: (startedMs: number) => void = () => {},
): Store {
  const timed = (method: Timed) => {
    const send = store[method].bind(store) as (...args: unknown[]) => Promise<unknown>;
    const mayBeRefused = method === 'start' || method === 'restart';
    // Without an async function, which would add a promise to each command.
    return (...args: unknown[]) => {
      const startedMs = clock.monotonicMs();
      const ended = (isOk: boolean) => {
        const labels = { command: TIMED[method], result: isOk ? 'ok' : 'failed' } as const;
        emit('storeSeconds', labels, (clock.monotonicMs() - startedMs) / 1000);
      };
      const why = mayBeRefused ? refusal((args[0] as { recordId: RecordId }).recordId) : undefined;
      const refused = why === undefined ? undefined : new StoreUnavailable(why, { maybeWritten: false });
      return (refused ? Promise.reject(refused) : send(...args)).then(
        (answer) => {
          const isOk = method !== 'health' || (answer as StoreHealth).ok;
          ended(isOk);
          if (!isOk) failed(startedMs);
          return answer;
        },
        (error: unknown) => {
          ended(false);
          if (error !== refused && error instanceof StoreUnavailable && !(error instanceof UnreadableRecord))
            failed(startedMs);
          const [subject] = args as [RecordId | { recordId: RecordId }];
          const recordId = typeof subject === 'object' ? subject.recordId : subject;
          if (error instanceof UnreadableRecord && !NOT_FOR_MERCHANTS.has(method))
            emit('unreadable', { recordId, reason: error.reason, why: error.message });
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
    get connections() {
      return store.connections;
    },
    connectionOf: (recordId) => store.connectionOf(recordId),
    onConnected: (act) => store.onConnected(act),
    idsOf: (digits) => store.idsOf(digits),
    countDoubts: (options) => store.countDoubts(options),
    close: () => store.close(),
    ...(Object.fromEntries(methods.map((method) => [method, timed(method)])) as Pick<Store, Timed>),
  };
}
