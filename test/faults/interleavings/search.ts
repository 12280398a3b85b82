import { checkEnd, Violation } from './checks.ts';
import { nameOf } from './process.ts';
import type { Setup } from './setup.ts';
import { World } from './world.ts';

export interface Found {
  /** Complete sequences of choices. */
  orderings: bigint;
  /** States that were visited: many orderings pass through the same states. */
  states: number;
}

/** Thrown with the choices that lead to the violation, one per line. */
export class BrokenPromise extends Error {
  override readonly name = 'BrokenPromise';
}

/**
 * Searches all orderings. Engines cannot be copied, so each state is reached by running them from the beginning with the
 * choices that lead there.
 *
 * Two states with the same future are searched once, and their orderings are counted each time. The state of a process is a
 * function of what it has seen. A state therefore consists of the store, the commands in flight, and what each process has
 * seen. Identical requests in separate engines are interchangeable (`symmetric`).
 */
export async function search(
  setup: Setup,
  reduce = { states: true, symmetric: !setup.oneEngine },
): Promise<Found> {
  const counted = new Map<string, bigint>();
  const renamings = reduce.symmetric ? permutations(setup.requests) : [];
  let states = 0;

  async function orderingsFrom(world: World, path: string[]): Promise<bigint> {
    const key = reduce.states ? keyOf(world, renamings) : path.join('\n');
    const known = counted.get(key);
    if (known !== undefined) return known;
    states++;
    // Otherwise no time limit of the test could end it.
    if (states % 1000 === 0) await new Promise((resolve) => setImmediate(resolve));
    let orderings = 0n;
    if (world.isComplete) {
      await checkEnd(world);
      orderings = 1n;
    }
    const choices = [...world.choices().keys()];
    if (choices.length === 0 && !world.isComplete) throw new Violation('nothing can happen any more');
    // A death or a lapse that leads to a known state needs no run from the beginning.
    const unknown: string[] = [];
    for (const choice of choices) {
      const next = reduce.states ? await world.foresee(choice, () => keyOf(world, renamings)) : undefined;
      const count = next === undefined ? undefined : counted.get(next);
      if (count === undefined) unknown.push(choice);
      else orderings += count;
    }
    for (const [number, choice] of unknown.entries()) {
      const next = number === 0 ? world : await World.after(setup, path);
      path.push(choice);
      await next.take(choice);
      orderings += await orderingsFrom(next, path);
      path.pop();
    }
    counted.set(key, orderings);
    return orderings;
  }

  const path: string[] = [];
  try {
    return { orderings: await orderingsFrom(await World.after(setup, []), path), states };
  } catch (error) {
    if (!(error instanceof Violation)) throw error;
    throw new BrokenPromise(`${error.message}:\n${path.join('\n')}`);
  }
}

/** The same for states that differ only in which of the identical requests is which. */
function keyOf(world: World, renamings: readonly (readonly number[])[]): string {
  const [shared, processes] = [world.sharedKey(), world.processKeys()];
  if (renamings.length === 0) return [shared, ...processes].join('\n');
  // The processes are sorted by their state without names. Only the orders of equal ones must be tried.
  const nameless = processes.map((process) => process.replace(/<\d>/g, '<>'));
  const keys = renamings
    .map((order) => ({ order, sorted: order.map((index) => nameless[index]).join('\n') }))
    .toSorted((a, b) => (a.sorted < b.sorted ? -1 : 1))
    .filter(({ sorted }, _, [least]) => sorted === least?.sorted)
    .map(({ order }) =>
      [shared, ...order.map((index) => processes[index])]
        .join('\n')
        .replace(/<(\d)>/g, (_, index) => nameOf(order.indexOf(Number(index)))),
    );
  return keys.toSorted()[0] as string;
}

function permutations(count: number): number[][] {
  if (count === 0) return [[]];
  const last = count - 1;
  return permutations(last).flatMap((rest) =>
    Array.from({ length: count }, (_, at) => [...rest.slice(0, at), last, ...rest.slice(at)]),
  );
}
