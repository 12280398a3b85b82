import type { Clock } from '../kernel/clock.ts';
import type { Store } from './store.ts';

/** Called for every command: its name, whether the store answered it, and how long it took. */
export type ObserveCommand = (command: string, result: 'ok' | 'failed', ms: number) => void;

/** The same store, with each command measured. */
export function measured(store: Store, clock: Clock, observe: ObserveCommand): Store {
  const timed = <T>(command: string, work: Promise<T>, good = (_answer: T) => true): Promise<T> => {
    const startedMs = clock.monotonicMs();
    const ended = (result: 'ok' | 'failed') => observe(command, result, clock.monotonicMs() - startedMs);
    return work.then(
      (answer) => {
        ended(good(answer) ? 'ok' : 'failed');
        return answer;
      },
      (error: unknown) => {
        ended('failed');
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
