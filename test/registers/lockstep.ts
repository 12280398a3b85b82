import fc from 'fast-check';
import { expect } from 'vitest';
import type { RecordId, Token } from '../../src/lib/brands.ts';
import { systemRandom } from '../../src/lib/random.ts';
import type { Register, Seen, Write } from '../../src/store/register.ts';
import { type KeyRecord, StoreUnavailable, UnreadableRecord, VOID_TOKEN_MS } from '../../src/store/types.ts';
import { memory, type Place, STEP_MS } from './places.ts';
import {
  completed,
  completions,
  creation,
  everyPage,
  inDoubt,
  newId,
  newRecord,
  nextOf,
  plain,
  replacement,
} from './records.ts';

const IDS = 2;
const TOKENS = 2;

const index = fc.nat({ max: IDS - 1 });
const token = fc.nat({ max: TOKENS - 1 });
const createdAtMs = fc.constantFrom(1000, 3000);
const lives = fc.constantFrom(...[2.5, 50.5, 1000.5].map((steps) => steps * STEP_MS));
const seldom = fc.nat({ max: 4 }).map((number) => number === 0);

const create = fc.record({ do: fc.constant('create' as const), id: index, token, lives, createdAtMs });
const replace = fc.record({
  do: fc.constant('replace' as const),
  ...{ id: index, node: token, token, createdAtMs },
  lives: fc.oneof(lives, fc.constant('unchanged' as const)),
  from: fc.constantFrom(...(['there', 'there', 'there', 'earlier', 'nothing'] as const)),
  to: fc.constantFrom(...(['executing', 'in_doubt', 'completed', 'nothing'] as const)),
  ...{ unlessLeased: seldom, unlessClosed: seldom, ends: seldom, voids: seldom, resolves: seldom },
});
/** An earlier write whose reply was lost arrives again, or it arrives late. */
const again = fc.record({ do: fc.constant('again' as const), write: fc.nat({ max: 9 }) });
const renew = fc.record({ do: fc.constant('renew' as const), id: index, token });
const endLease = fc.record({ do: fc.constant('endLease' as const), id: index, token });
const pass = fc.record({
  do: fc.constant('pass' as const),
  ms: fc.constantFrom(STEP_MS, 3 * STEP_MS, 51 * STEP_MS, VOID_TOKEN_MS),
});
const close = fc.record({
  do: fc.constant('close' as const),
  to: fc.constantFrom(...(['no', 'no', 'no', 'no', 'no', 'no', 'no', 'no', 'starts', 'all'] as const)),
});
const damage = fc.record({ do: fc.constant('damage' as const), id: index });

/** What happens on both stores. Numbers choose one of the ids, tokens, registers and earlier writes. */
const steps = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: create },
    { weight: 12, arbitrary: replace },
    { weight: 4, arbitrary: again },
    { weight: 3, arbitrary: renew },
    { weight: 1, arbitrary: endLease },
    { weight: 3, arbitrary: pass },
    { weight: 1, arbitrary: close },
    { weight: 1, arbitrary: damage },
  ),
  { maxLength: 30, size: '+1' },
);
type Step = typeof steps extends fc.Arbitrary<(infer Drawn)[]> ? Drawn : never;

/** One history on the register of tests and on another one. */
class Lockstep {
  readonly #places: [expected: Place, actual: Place];
  readonly #ids = Array.from({ length: IDS }, newId);
  /** Tokens of one id are of no other, as those of executions. */
  readonly #tokens = this.#ids.map(() => Array.from({ length: TOKENS }, systemRandom.token));
  /** Every version that was written under an id, the latest last. */
  readonly #versions = this.#ids.map((): KeyRecord[] => []);
  readonly #writes: { id: number; node: number; write: Write }[] = [];
  readonly #damaged = new Map<number, KeyRecord>();

  constructor(expected: Place, actual: Place) {
    this.#places = [expected, actual];
  }

  async take(step: Step): Promise<void> {
    switch (step.do) {
      case 'create': {
        const { id, token: number, lives: ms, createdAtMs: atMs } = step;
        const record = newRecord({ token: this.#token(id, number), createdAtMs: atMs });
        return await this.#write(id, number, creation(record, ms));
      }
      case 'replace':
        return await this.#write(step.id, step.node, await this.#replacement(step));
      case 'again': {
        const { id, node, write } = this.#writes.at(-1 - (step.write % (this.#writes.length || 1))) ?? {};
        // Whether its own revision is still known there is left open.
        if (!write || this.#damaged.has(id as number)) return;
        return await this.#write(id as number, node as number, write);
      }
      case 'renew':
        // An owner reads the record first, and SQLite has no lease without one.
        if (!(await this.#there(step.id))) return;
        return await this.#same(step.token, (node) =>
          node.renew(this.#id(step.id), this.#token(step.id, step.token), STEP_MS / 2),
        );
      case 'endLease':
        return await this.#same(step.token, (node) =>
          node.endLease(this.#id(step.id), this.#token(step.id, step.token)),
        );
      case 'pass':
        // SQLite cannot tell when what it cannot read expires.
        if (this.#damaged.size > 0) return;
        return await this.#onBoth((place) => place.pass(step.ms));
      case 'close':
        return await this.#onBoth((place) => place.closeTo(step.to));
      case 'damage': {
        const record = await this.#there(step.id);
        if (!record) return;
        this.#damaged.set(step.id, record);
        return await this.#onBoth((place) => place.damage(this.#id(step.id)));
      }
    }
  }

  /** Everything that can be read from each store. */
  async compare(): Promise<void> {
    for (const node of [0, 1]) {
      for (const id of this.#ids) {
        await this.#same(node, (register) => register.read(id));
        await this.#same(node, (register) => register.audit(id));
      }
      for (const open of [false, true])
        await this.#same(node, async (register) => {
          const records = await everyPage(register, open);
          return records
            .map((one) => {
              if (one.unreadable !== undefined) return { id: one.id };
              const isLeased = one.head.state !== 'completed' && one.isLeased;
              return { ...one, isLeased, expiresInMs: 0 };
            })
            .toSorted((a, b) => (a.id < b.id ? -1 : 1));
        });
      // Columns can be damaged, and then the index is too.
      if (this.#damaged.size > 0) continue;
      await this.#same(node, async (register) => {
        const { inDoubt: doubts, old, resolutions } = await register.countOpen({ executingSinceMs: 2000 });
        return [new Map([...doubts].toSorted()), old.toSorted(), resolutions.map(({ number }) => number)];
      });
    }
  }

  async #replacement({
    id,
    from,
    to,
    token: number,
    lives: ms,
    ...step
  }: Step & { do: 'replace' }): Promise<Write> {
    const versions = this.#versions[id] as KeyRecord[];
    const there = await this.#there(id);
    const earlier = versions[step.node % (versions.length || 1)];
    const old = { there, earlier, nothing: undefined }[from];
    const base = old ?? newRecord({ createdAtMs: step.createdAtMs });
    const own = this.#token(id, number);
    const record = {
      executing: nextOf(base, { state: 'executing', token: own, restarted: true }),
      in_doubt: inDoubt(base),
      completed: completed(base, completions[number]),
      nothing: undefined,
    }[to];
    if (record && record.state !== 'completed') delete record.completion;
    const resolution = { as: 'released', by: 'operator' } as const;
    const { state, merchant, operation, key, requestId, createdAtMs: atMs, changedAtMs } = base;
    const audit = {
      ...{ atMs: this.#writes.length, by: 'ada', reason: 'books', to: { as: 'released' } as const },
      from: { state, merchant, operation, key, requestId, createdAtMs: atMs, changedAtMs },
    };
    return replacement(old, record, {
      // SQLite removes a lease together with its record.
      ...{ unlessLeased: step.unlessLeased || !record, unlessClosed: step.unlessClosed },
      ...(old && ms === 'unchanged' ? { expiresInMs: ms } : {}),
      ...(record && ms !== 'unchanged' ? { expiresInMs: ms } : {}),
      ...(step.ends ? { endLeaseOf: this.#token(id, step.node) } : {}),
      ...(step.voids ? { voidToken: own } : {}),
      ...(step.resolves ? { audit, counted: resolution } : {}),
    });
  }

  /** What is there, even if it cannot be read any more. */
  async #there(id: number): Promise<KeyRecord | undefined> {
    try {
      return (await this.#places[0].nodes[0].read(this.#id(id)))?.record;
    } catch {
      return this.#damaged.get(id);
    }
  }

  async #write(id: number, node: number, write: Write): Promise<void> {
    this.#writes.push({ id, node, write });
    if (write.record) this.#versions[id]?.push(write.record);
    await this.#same(node, (register) =>
      write.kind === 'create' ? register.create(this.#id(id), write) : register.replace(this.#id(id), write),
    );
    await this.#same(1 - node, (register) => register.read(this.#id(id), true));
  }

  /** @param node the same for all events of one token: a process knows the leases that it has taken */
  async #same(node: number, act: (register: Register) => Promise<unknown>): Promise<void> {
    const [expected, actual] = await Promise.all(
      this.#places.map(({ nodes }) => wordsOf(act(nodes[node as 0 | 1]))),
    );
    expect(actual).toEqual(expected);
  }

  async #onBoth(act: (place: Place) => Promise<void>): Promise<void> {
    for (const place of this.#places) await act(place);
  }

  #id(number: number): RecordId {
    return this.#ids[number] as RecordId;
  }

  #token(id: number, number: number): Token {
    return (this.#tokens[id] as Token[])[number] as Token;
  }
}

/** An answer in words that can be compared. */
async function wordsOf(answer: Promise<unknown>): Promise<unknown> {
  try {
    const value = await answer;
    if (typeof value !== 'object' || value === null) return value;
    if ('done' in value) return value.done ? 'done' : ['refused', ...seenIn((value as { held?: Seen }).held)];
    return 'record' in value ? seenIn(value as Seen) : value;
  } catch (error) {
    if (!(error instanceof StoreUnavailable)) throw error;
    return [error instanceof UnreadableRecord ? 'unreadable' : 'unavailable', error.maybeWritten];
  }
}

/** Nothing depends on the lease of a completed record, nor on how long it still lives. */
function seenIn(seen: Seen | undefined): unknown[] {
  if (!seen || seen.record.state === 'completed') return [plain(seen)];
  return [plain(seen), seen.isLeased, Math.floor(seen.expiresInMs / STEP_MS)];
}

/** Random histories, with writes that arrive again, on this register and on the register of tests. */
export async function keepStep(place: Place, parameters: fc.Parameters<[Step[]]>): Promise<void> {
  await fc.assert(
    fc.asyncProperty(steps, async (history) => {
      const expected = memory();
      await place.reset();
      const lockstep = new Lockstep(expected, place);
      for (const step of history) await lockstep.take(step);
      await lockstep.compare();
    }),
    parameters,
  );
}
