import type { Fingerprint, Scope, Token } from '../kernel/brands.ts';
import type { Clock } from '../kernel/clock.ts';
import type { ListFilter } from './listing.ts';
import type { Settlement } from './record.ts';
import type { Resolution, ResolutionNote } from './resolution.ts';
import type { ClaimRequest, Owner, Store } from './store.ts';

/** Told of every command: its name, `ok` or `failed`, and how long it took. */
export type ObserveCommand = (command: string, result: 'ok' | 'failed', ms: number) => void;

/** The same store, with each command's time told. */
export function measured(store: Store, clock: Clock, observe: ObserveCommand): Store {
  const timed = <T>(command: string, work: () => Promise<T>, good = (_answer: T) => true): Promise<T> => {
    const startedMs = clock.monotonicMs();
    const told = (result: 'ok' | 'failed') => observe(command, result, clock.monotonicMs() - startedMs);
    return work().then(
      (answer) => {
        told(good(answer) ? 'ok' : 'failed');
        return answer;
      },
      (error: unknown) => {
        told('failed');
        throw error;
      },
    );
  };
  return {
    claim: (request: ClaimRequest) => timed('claim', () => store.claim(request)),
    begin: (owner: Owner) => timed('begin', () => store.begin(owner)),
    takeOver: (heir: Owner, fingerprint: Fingerprint) =>
      timed('take_over', () => store.takeOver(heir, fingerprint)),
    renew: (owner: Owner) => timed('renew', () => store.renew(owner)),
    settle: (owner: Owner, settlement: Settlement) => timed('settle', () => store.settle(owner, settlement)),
    release: (owner: Owner) => timed('release', () => store.release(owner)),
    markInDoubt: (owner: Owner) => timed('in_doubt', () => store.markInDoubt(owner)),
    get: (scope: Scope) => timed('get', () => store.get(scope)),
    list: (filter: ListFilter) => timed('list', () => store.list(filter)),
    resolve: (scope: Scope, seen: Token, resolution: Resolution, note: ResolutionNote) =>
      timed('resolve', () => store.resolve(scope, seen, resolution, note)),
    audit: (scope: Scope) => timed('audit', () => store.audit(scope)),
    health: () =>
      timed(
        'health',
        () => store.health(),
        ({ ok }) => ok,
      ),
    close: () => store.close(),
  };
}
