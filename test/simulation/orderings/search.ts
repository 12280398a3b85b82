import { BrokenPromise, nameOf, type Setup, World } from './world.ts';

export interface Found {
  /** Complete sequences of choices. */
  orderings: bigint;
  /** States that were visited: many orderings pass through the same states. */
  states: number;
}

/**
 * Searches all orderings. Gateways cannot be copied, so each state is reached by running them from the beginning with the
 * choices that lead there.
 *
 * Two states with the same future are searched once, and their orderings are counted each time. The state of a process is a
 * function of what it has seen. A state therefore consists of the store, the commands in flight, and what each process has
 * seen. Identical requests in separate engines are interchangeable (`symmetric`).
 */
export async function search(
  setup: Setup,
  reduce = { states: true, symmetric: !setup.oneGateway },
): Promise<Found> {
  const counted = new Map<string, bigint>();
  let states = 0;

  async function orderingsFrom(world: World, path: string[]): Promise<bigint> {
    const key = reduce.states ? keyOf(world, reduce.symmetric) : path.join('\n');
    const known = counted.get(key);
    if (known !== undefined) return known;
    states++;
    // Otherwise no time limit of the test could end it.
    if (states % 1000 === 0) await new Promise((resolve) => setImmediate(resolve));
    const choices = [...world.choices()];
    const { isComplete } = world;
    if (choices.length === 0 && !isComplete) throw new BrokenPromise('nothing can happen any more');
    if (isComplete) await world.end();
    let orderings = BigInt(isComplete);
    // A death or a lapse that leads to a known state needs no run from the beginning.
    const unknown: string[] = [];
    for (const choice of choices) {
      const next = reduce.states
        ? await world.foresee(choice, () => keyOf(world, reduce.symmetric))
        : undefined;
      const count = next === undefined ? undefined : counted.get(next);
      if (count === undefined) unknown.push(choice[0]);
      else orderings += count;
    }
    for (const [number, choice] of unknown.entries()) {
      const next = number === 0 && !isComplete ? world : await World.after(setup, path);
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
    if (error instanceof BrokenPromise) error.message += `:\n${path.join('\n')}`;
    throw error;
  }
}

/** The same for states that differ only in which of the identical requests is which. */
function keyOf(world: World, isSymmetric: boolean): string {
  const [shared, hosts] = [world.sharedKey(), world.hostKeys()];
  if (!isSymmetric) return [shared, ...hosts].join('\n');
  // The hosts are sorted by their state without names, and equal ones by who is mentioned first.
  const nameless = hosts.map((host) => host.replace(/<\d>/g, '<>'));
  const order = [...hosts.keys()].sort((a, b) => {
    const [one, other] = [nameless[a] as string, nameless[b] as string];
    if (one !== other) return one < other ? -1 : 1;
    return shared.indexOf(nameOf(a)) - shared.indexOf(nameOf(b));
  });
  return [shared, ...order.map((index) => hosts[index])]
    .join('\n')
    .replace(/<(\d)>/g, (_, index) => nameOf(order.indexOf(Number(index))));
}
