import type { Scope } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import { type Store, StoreUnavailable, type UnreadableReason, UnreadableRecord } from './contract.ts';

export interface StoreObserver {
  /** Called once for each finished command. `failed`: it threw, or a health check was not ok. `ms`: how long it took. */
  commandEnded(command: string, result: 'ok' | 'failed', ms: number): void;
  /** Called for each command that failed because the record of its scope cannot be read. `why`: for the operator. */
  unreadable(scope: Scope, reason: UnreadableReason, why: string): void;
}

/**
 * Wraps a store and reports the result and duration of each command, except `close`, and `countDoubts`, which takes many.
 *
 * @param refusal why starts and restarts must not be sent to the store now, although it may take them
 */
export function measured(
  store: Store,
  clock: Clock,
  observer: StoreObserver,
  refusal: () => string | undefined = () => undefined,
): Store {
  const timed = <T>(
    command: string,
    work: Promise<T>,
    scope?: Scope,
    isOk = (_answer: T) => true,
  ): Promise<T> => {
    const startedMs = clock.monotonicMs();
    const report = (result: 'ok' | 'failed') =>
      observer.commandEnded(command, result, clock.monotonicMs() - startedMs);
    return work.then(
      (answer) => {
        report(isOk(answer) ? 'ok' : 'failed');
        return answer;
      },
      (error: unknown) => {
        report('failed');
        if (scope && error instanceof UnreadableRecord)
          observer.unreadable(scope, error.reason, error.message);
        throw error;
      },
    );
  };
  const refused = (command: 'start' | 'restart'): Promise<never> | undefined => {
    const why = refusal();
    return why === undefined
      ? undefined
      : timed(command, Promise.reject(new StoreUnavailable(why, { maybeWritten: false })));
  };
  return {
    get refusing() {
      return store.refusing ?? refusal();
    },
    get connection() {
      return store.connection;
    },
    onConnected: (act) => store.onConnected?.(act),
    start: (execution) => refused('start') ?? timed('start', store.start(execution), execution.scope),
    peek: (request) => timed('peek', store.peek(request), request.scope),
    restart: (execution) => refused('restart') ?? timed('restart', store.restart(execution), execution.scope),
    renew: (owner) => timed('renew', store.renew(owner), owner.scope),
    complete: (execution, completion, wasTold) =>
      timed('complete', store.complete(execution, completion, wasTold), execution.scope),
    release: (owner) => timed('release', store.release(owner), owner.scope),
    markInDoubt: (owner, cause) => timed('in_doubt', store.markInDoubt(owner, cause), owner.scope),
    takeBack: (owner) => timed('release', store.takeBack(owner), owner.scope),
    aliveForMs: (owner) => timed('peek', store.aliveForMs(owner), owner.scope),
    get: (scope) => timed('get', store.get(scope), scope),
    isOwnerGone: (scope) => timed('peek', store.isOwnerGone(scope), scope),
    expiresInMs: (scope) => timed('expires_in', store.expiresInMs(scope)),
    list: (filter) => timed('list', store.list(filter)),
    resolve: (scope, seen, resolution, note) =>
      timed('resolve', store.resolve(scope, seen, resolution, note), scope),
    countDoubts: (options) => store.countDoubts(options),
    audit: (scope) => timed('audit', store.audit(scope)),
    readMark: (mode) => timed('read_mark', store.readMark(mode)),
    mark: (mode) => timed('mark', store.mark(mode)),
    health: () => timed('health', store.health(), undefined, ({ ok }) => ok),
    close: () => store.close(),
  };
}
