import type { Backend } from './backend.ts';
import { CRASH_POINTS, type CrashPoint } from './crash-point.ts';
import type { GatewayProcess } from './gateways.ts';
import type { StopsSettling } from './history.ts';
import type { Random } from './random.ts';
import type { Topology } from './topology.ts';

/** What can be broken: `inject` resolves when it is, `heal` when all is well again. */
export interface Fault {
  name: string;
  of: 'gateway' | 'backend' | 'store';
  inject(): Promise<void>;
  heal(): Promise<void>;
  /** How long it stands; without it for as long as others do. */
  holdMs?: number;
  stopsSettling?: StopsSettling;
}

type Unsorted = Omit<Fault, 'of'>;

export interface Breakable {
  gateways: readonly GatewayProcess[];
  backend: Backend;
  topology: Topology;
  random: Random;
  leaseMs: number;
}

const CRASH_WITHIN_MS = 3000;
/** A gateway that ends in order lets what it executes end. */
const END_WITHIN_MS = 8000;

/** Every fault that this run knows; a run goes through all of them, in an order that the seed decides, again and again. */
export function allFaults(world: Breakable): Fault[] {
  return [
    ...gatewayFaults(world).map((fault) => ({ ...fault, of: 'gateway' as const })),
    ...backendFaults(world.backend).map((fault) => ({ ...fault, of: 'backend' as const })),
    ...world.topology.faults.map(({ settlesOn, ...fault }) => ({
      ...fault,
      of: 'store' as const,
      ...(settlesOn ? {} : { stopsSettling: 'everywhere' as const }),
    })),
  ];
}

function gatewayFaults({ gateways, topology, random, leaseMs }: Breakable): Unsorted[] {
  /** Strikes a gateway that chance picks each time, and heals the same. */
  const ofOne = (
    name: string,
    inject: (gateway: GatewayProcess) => Promise<void>,
    heal: (gateway: GatewayProcess) => Promise<void>,
    holdMs?: number,
  ): Unsorted => {
    let struck = random.pick(gateways);
    const strike = async () => {
      struck = random.pick(gateways);
      await inject(struck);
    };
    return { name, inject: strike, heal: () => heal(struck), ...(holdMs === undefined ? {} : { holdMs }) };
  };
  const crash = async (gateway: GatewayProcess, point: CrashPoint) => {
    if (!(await gateway.crashAt(point, CRASH_WITHIN_MS))) throw new Error(`nobody came by ${point}`);
  };
  const revive = (gateway: GatewayProcess) => gateway.revive();
  const fillDisk = async (gateway: GatewayProcess) => {
    if (!(await gateway.fillDisk(END_WITHIN_MS))) throw new Error('it has not ended');
  };
  const onTheirDisk = topology.config.store?.kind === 'lmdb';
  return [
    ofOne('gateway killed', (gateway) => gateway.kill(), revive),
    ...CRASH_POINTS.map((point) =>
      ofOne(`gateway killed ${point.replace('_', ' ')}`, (gateway) => crash(gateway, point), revive, 200),
    ),
    {
      ...ofOne(
        'gateway paused beyond its leases',
        async (gateway) => gateway.pause(),
        async (gateway) => gateway.resume(),
        leaseMs * 1.7,
      ),
      stopsSettling: 'there',
    },
    ...(onTheirDisk ? [ofOne("gateway's disk full", fillDisk, revive, 200)] : []),
    { name: 'rolling restart', inject: () => rollingRestart(gateways), heal: async () => {}, holdMs: 0 },
    ...[+1, -1].map((hours) => ({
      name: `wall clock ${hours > 0 ? 'an hour on' : 'an hour back'}`,
      inject: async () => gateways[0]?.shiftClock(hours),
      heal: async () => gateways[0]?.shiftClock(0),
      holdMs: 2000,
    })),
  ];
}

/** One after the other, as a deployment does. */
async function rollingRestart(gateways: readonly GatewayProcess[]): Promise<void> {
  for (const gateway of gateways) {
    await gateway.shutDown();
    await gateway.revive();
  }
}

function backendFaults(backend: Backend): Unsorted[] {
  return [
    { name: 'backend killed', inject: () => backend.kill(), heal: () => backend.start() },
    {
      name: 'connections to the backend cut',
      inject: async () => backend.cut(),
      heal: async () => {},
      holdMs: 0,
    },
    {
      name: 'backend refuses connections',
      inject: async () => backend.wire.stopListening(),
      heal: () => backend.listen(),
    },
    {
      name: 'backend resets connections',
      inject: async () => backend.reset(true),
      heal: async () => backend.reset(false),
    },
  ];
}

/** The next ones, and of a store's faults one at most: its servers must be able to come back together. */
export function draw(deck: readonly Fault[], count: number): { drawn: Fault[]; left: Fault[] } {
  const drawn: Fault[] = [];
  for (const fault of deck) {
    const fits = fault.of !== 'store' || drawn.every(({ of }) => of !== 'store');
    if (fits && drawn.length < count) drawn.push(fault);
  }
  return { drawn, left: deck.filter((fault) => !drawn.includes(fault)) };
}
