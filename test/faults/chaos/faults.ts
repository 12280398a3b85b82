import { recordIdOf } from '../../../src/ledger/record-id.ts';
import { until } from '../../support/until.ts';
import type { Backend } from './backend.ts';
import { CRASH_POINTS } from './crash-point.ts';
import { LEASE_MS } from './gateway-config.ts';
import type { GatewayProcess } from './gateways.ts';
import type { History, StopsCompleting } from './history.ts';
import { isCompleted, type Merchants } from './merchants.ts';
import { resolveInDoubt } from './operators.ts';
import { canFailIo } from './preloads.ts';
import type { Topology } from './topology.ts';

/** A fault: `inject` resolves when it is there, `heal` when it is over. Faults of a gateway hit one of them, a random one each time. */
export interface Fault {
  name: string;
  of: 'gateway' | 'backend' | 'store';
  /** The only gateway that it can hit. */
  only?: GatewayProcess;
  inject(gateway: GatewayProcess): unknown;
  heal(gateway: GatewayProcess): unknown;
  /** How long it lasts; a usual time by default. */
  holdMs?: number;
  stopsCompleting?: StopsCompleting;
  /** No other fault may be active at the same time, because this one needs the rest of the system to work. */
  alone?: true;
}

/** What a run consists of. */
export interface World {
  folder: string;
  history: History;
  backend: Backend;
  topology: Topology;
  gateways: readonly GatewayProcess[];
  merchants: Merchants;
}

/** libfiu's names of the system calls that SQLite makes. */
const WRITES = ['posix/io/rw/pwrite', 'posix/io/sync/fdatasync', 'posix/io/sync/fsync'];
const READS = ['posix/io/rw/pread'];
/** Longer than the lease of any gateway, on a loaded machine. */
const IN_DOUBT_WITHIN_MS = 8000;

/** Every fault of this run. A run goes through all of them repeatedly, in an order that the seed decides. */
export function allFaults(world: World): Fault[] {
  const { store } = world.topology.config;
  const isSqlite = store?.kind === 'sqlite';
  // A process may be stopped within a SQLite transaction, which blocks all other writers.
  const paused: StopsCompleting = isSqlite ? 'everywhere' : 'late';
  return [
    ...deaths(world),
    ...pauses(world, paused),
    ...(isSqlite ? failingFiles() : []),
    ...[+1, -1].flatMap((hours) => clockFaults(world, hours)),
    ...backendFaults(world.backend),
    ...world.topology.faults.map(({ completesOn, ...fault }) => ({
      ...{ ...fault, of: 'store' as const },
      ...(completesOn ? {} : { stopsCompleting: 'everywhere' as const }),
    })),
  ];
}

const revive = (gateway: GatewayProcess) => gateway.revive();
const resume = (gateway: GatewayProcess) => gateway.signal('SIGCONT');

function deaths({ gateways }: World): Fault[] {
  const of = 'gateway';
  return [
    { of, name: 'gateway killed', inject: (gateway) => gateway.kill(), heal: revive },
    ...CRASH_POINTS.map((point) => ({
      ...{ of: 'gateway' as const, name: `gateway killed ${point.replace('_', ' ')}`, holdMs: 200 },
      inject: (gateway: GatewayProcess) => gateway.endAt(point, 'SIGKILL'),
      heal: revive,
    })),
    {
      ...{ of, name: 'rolling restart', holdMs: 0 },
      // One after the other, as a deployment does.
      inject: async () => {
        for (const gateway of gateways) {
          await gateway.shutDown();
          await gateway.revive();
        }
      },
      heal: () => {},
    },
  ];
}

function pauses({ gateways, merchants }: World, stopsCompleting: StopsCompleting): Fault[] {
  return [
    {
      ...{ of: 'gateway', name: 'gateway paused beyond its leases', holdMs: LEASE_MS * 1.7, stopsCompleting },
      inject: (gateway) => gateway.signal('SIGSTOP'),
      heal: resume,
    },
    {
      ...{ of: 'gateway', name: 'owner paused, its key resolved', holdMs: 0, stopsCompleting, alone: true },
      // An operator releases its key as soon as another gateway allows it, and its merchant retries there. The owner must send nothing.
      inject: async (owner) => {
        const stopped = await owner.endAt('after_start', 'SIGSTOP');
        const other = gateways[(owner.number + 1) % gateways.length];
        const life = stopped && merchants.lifeOf(`${stopped.merchant} ${stopped.key}`);
        if (!life || !other) throw new Error('no owner was stopped');
        const id = recordIdOf('gateway', stopped.merchant, stopped.key);
        const release = async () => (await resolveInDoubt(other.adminPort, id, 'released')) === undefined;
        await until(release, IN_DOUBT_WITHIN_MS);
        const ended = await merchants.call(life, 'merchant', other.number, { preferWaitS: 1 });
        if (!isCompleted(ended)) throw new Error(`the freed key was not executed: ${JSON.stringify(ended)}`);
      },
      heal: resume,
    },
  ];
}

function failingFiles(): Fault[] {
  const fault = (name: string, fail: (gateway: GatewayProcess, on: boolean) => unknown): Fault => ({
    ...{ of: 'gateway', name: `gateway's ${name}`, stopsCompleting: 'there' },
    inject: (gateway) => fail(gateway, true),
    heal: (gateway) => fail(gateway, false),
  });
  const calls = (name: string, points: readonly string[], probability: number) =>
    fault(`${name} calls fail`, (gateway, on) => gateway.failIo(points, on ? probability : 0));
  return [
    fault('writes to files refused', (gateway, on) => gateway.limitFiles(on)),
    ...(canFailIo ? [calls('write', WRITES, 0.3), calls('read and write', [...WRITES, ...READS], 0.1)] : []),
  ];
}

/** Faults of the first gateway, whose wall clock can be moved while it runs and while it is down. */
function clockFaults({ gateways: [first] }: World, hours: number): Fault[] {
  if (!first) throw new Error('there are no gateways');
  const way = hours > 0 ? 'one hour forward' : 'one hour back';
  const restartAt = async (at: number) => {
    await first.kill();
    first.shiftClock(at);
    await first.revive();
  };
  return [
    {
      ...{ of: 'gateway', only: first, name: `wall clock ${way}`, holdMs: 2000 },
      inject: () => first.shiftClock(hours),
      heal: () => first.shiftClock(0),
    },
    {
      // Long enough for the gateway to be warm and under load before it is killed again.
      ...{ of: 'gateway', only: first, name: `wall clock ${way} across a restart`, holdMs: 2500 },
      inject: () => restartAt(hours),
      heal: () => restartAt(0),
    },
  ];
}

function backendFaults(backend: Backend): Fault[] {
  const of = 'backend';
  return [
    { of, name: 'backend killed', inject: () => backend.kill(), heal: () => backend.start() },
    { of, name: 'connections to the backend cut', inject: () => backend.cut(), heal: () => {}, holdMs: 0 },
    {
      ...{ of, name: 'backend refuses connections' },
      inject: () => backend.refuse(),
      heal: () => backend.listen(),
    },
    {
      ...{ of, name: 'backend resets connections' },
      inject: () => backend.reset(true),
      heal: () => backend.reset(false),
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
