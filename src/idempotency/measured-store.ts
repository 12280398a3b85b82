import type { Clock } from '../kernel/clock.ts';
import type { Store } from './store.ts';

/** Called once for each finished store command. `failed`: it threw, or a health check was not ok. `ms`: how long it took. */
export type ObserveCommand = (command: string, result: 'ok' | 'failed', ms: number) => void;

/** Wraps a store and reports the result and duration of each command, except `close`. */
export function measured(store: Store, clock: Clock, observe: ObserveCommand): Store {
  const timed = <T>(command: string, work: Promise<T>, isOk = (_answer: T) => true): Promise<T> => {
    const startedMs = clock.monotonicMs();
    const report = (result: 'ok' | 'failed') => observe(command, result, clock.monotonicMs() - startedMs);
    return work.then(
      (answer) => {
        report(isOk(answer) ? 'ok' : 'failed');
        return answer;
      },
      (error: unknown) => {
        report('failed');
        throw error;
      },
    );
  };
  return {
    get refusing() {
      return store.refusing;
    },
    start: (execution) => timed('start', store.start(execution)),
    peek: (request) => timed('peek', store.peek(request)),
    restart: (execution) => timed('restart', store.restart(execution)),
    renew: (owner) => timed('renew', store.renew(owner)),
    complete: (execution, completion) => timed('complete', store.complete(execution, completion)),
    release: (owner, options) => timed('release', store.release(owner, options)),
    markInDoubt: (owner, options) => timed('in_doubt', store.markInDoubt(owner, options)),
    get: (scope) => timed('get', store.get(scope)),
    list: (filter) => timed('list', store.list(filter)),
    resolve: (scope, seen, resolution, note) =>
      timed('resolve', store.resolve(scope, seen, resolution, note)),
    audit: (scope) => timed('audit', store.audit(scope)),
    health: () => timed('health', store.health(), ({ ok }) => ok),
    close: () => store.close(),
  };
}
