import type { Backend } from './backend.ts';
import { type Gateways, gatewayFaults } from './faults-of-gateways.ts';
import { pausedOwners } from './faults-of-owners.ts';
import type { StopsCompleting } from './history.ts';
import type { Topology } from './topology.ts';

/** A fault: `inject` resolves when it is there, `heal` when it is over. */
export interface Fault {
  name: string;
  of: 'gateway' | 'backend' | 'store';
  /** Picks the gateway that `inject` will hit. */
  aim?(): number;
  inject(): Promise<void>;
  heal(): Promise<void>;
  /** How long it lasts; a usual time by default. */
  holdMs?: number;
  stopsCompleting?: StopsCompleting;
  /** No other fault may be active at the same time, because this one needs the rest of the system to work. */
  alone?: true;
}

export interface Breakable extends Gateways {
  backend: Backend;
  topology: Topology;
}

/** Every fault of this run. A run goes through all of them repeatedly, in an order that the seed decides. */
export function allFaults(world: Breakable): Fault[] {
  const onSqlite = world.topology.config.store?.kind === 'sqlite';
  // A process may be stopped within a SQLite transaction, which blocks all other writers.
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
 * Draws the next faults. At most one of them is a fault of the store, so that its servers can recover. The first fault in the
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
