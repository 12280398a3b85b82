import type { Backend } from './backend.ts';
import { type Gateways, gatewayFaults } from './faults-of-gateways.ts';
import { pausedOwners } from './faults-of-owners.ts';
import type { StopsCompleting } from './history.ts';
import type { Topology } from './topology.ts';

/** What can be broken: `inject` resolves when it is, `heal` when all is well again. */
export interface Fault {
  name: string;
  of: 'gateway' | 'backend' | 'store';
  /** Picks the gateway that `inject` will strike. */
  aim?(): number;
  inject(): Promise<void>;
  heal(): Promise<void>;
  /** How long it lasts; without it as long as others do. */
  holdMs?: number;
  stopsCompleting?: StopsCompleting;
  /** No other fault at the same time: it needs the rest of the system to be well. */
  alone?: true;
}

export interface Breakable extends Gateways {
  backend: Backend;
  topology: Topology;
}

/** Every fault that this run knows; a run goes through all of them, in an order that the seed decides, again and again. */
export function allFaults(world: Breakable): Fault[] {
  const onSqlite = world.topology.config.store?.kind === 'sqlite';
  // A process may be stopped within a SQLite transaction, which keeps all others from writing.
  const paused: StopsCompleting = onSqlite ? 'everywhere' : 'late';
  return [
    ...gatewayFaults(world, { paused, onSqlite }),
    ...pausedOwners(world, paused),
    ...backendFaults(world.backend),
    ...world.topology.faults.map(({ completesOn, ...fault }) => ({
      ...fault,
      of: 'store' as const,
      ...(completesOn ? {} : { stopsCompleting: 'everywhere' as const }),
    })),
  ];
}

function backendFaults(backend: Backend): Fault[] {
  const of = 'backend';
  return [
    { of, name: 'backend killed', inject: () => backend.kill(), heal: () => backend.start() },
    {
      of,
      name: 'connections to the backend cut',
      inject: async () => backend.cut(),
      heal: async () => {},
      holdMs: 0,
    },
    {
      of,
      name: 'backend refuses connections',
      inject: async () => backend.wire.stopListening(),
      heal: () => backend.listen(),
    },
    {
      of,
      name: 'backend resets connections',
      inject: async () => backend.reset(true),
      heal: async () => backend.reset(false),
    },
  ];
}

/**
 * The next ones. Of a store's faults one at most: its servers must be able to come back together. The first fault in the
 * deck is always drawn.
 */
export function draw(deck: readonly Fault[], count: number): { drawn: Fault[]; left: Fault[] } {
  const drawn: Fault[] = [];
  for (const fault of deck) {
    const fits =
      drawn.length === 0 ||
      (!fault.alone && drawn.every(({ of, alone }) => !alone && (of !== 'store' || fault.of !== 'store')));
    if (fits && drawn.length < count) drawn.push(fault);
  }
  return { drawn, left: deck.filter((fault) => !drawn.includes(fault)) };
}
