import { CRASH_POINTS, type CrashPoint } from './crash-point.ts';
import type { Fault } from './faults.ts';
import type { GatewayProcess } from './gateways.ts';
import type { History, StopsCompleting } from './history.ts';
import type { Merchants } from './merchants.ts';
import { canFailIo } from './preloads.ts';
import type { Random } from './random.ts';

export interface Gateways {
  gateways: readonly GatewayProcess[];
  merchants: Merchants;
  history: History;
  random: Random;
  leaseMs: number;
}

const CRASH_WITHIN_MS = 3000;

/** libfiu's names of the system calls that SQLite makes. */
const WRITES = ['posix/io/rw/pwrite', 'posix/io/sync/fdatasync', 'posix/io/sync/fsync'];
const READS = ['posix/io/rw/pread'];

/** The gateway that a fault hits; a random one each time. */
export class Struck {
  readonly #gateways: readonly GatewayProcess[];
  readonly #random: Random;
  #gateway: GatewayProcess;

  constructor({ gateways, random }: Pick<Gateways, 'gateways' | 'random'>) {
    this.#gateways = gateways;
    this.#random = random;
    this.#gateway = random.pick(gateways);
  }

  get gateway(): GatewayProcess {
    return this.#gateway;
  }

  readonly aim = (): number => {
    this.#gateway = this.#random.pick(this.#gateways);
    return this.#gateway.number;
  };
}

/** @param paused where results cannot be stored while a gateway is stopped */
export function gatewayFaults(
  world: Gateways,
  { paused, onSqlite }: { paused: StopsCompleting; onSqlite: boolean },
): Fault[] {
  const { gateways, leaseMs } = world;
  const ofOne = (
    name: string,
    inject: (gateway: GatewayProcess) => Promise<void>,
    heal: (gateway: GatewayProcess) => Promise<void>,
    more: Pick<Fault, 'holdMs' | 'stopsCompleting'> = {},
  ): Fault => {
    const struck = new Struck(world);
    return {
      ...{ of: 'gateway', name, aim: struck.aim },
      inject: () => inject(struck.gateway),
      heal: () => heal(struck.gateway),
      ...more,
    };
  };
  const crash = async (gateway: GatewayProcess, point: CrashPoint) => {
    if (!(await gateway.crashAt(point, CRASH_WITHIN_MS))) throw new Error(`no request reached ${point}`);
  };
  const revive = (gateway: GatewayProcess) => gateway.revive();
  return [
    ofOne('gateway killed', (gateway) => gateway.kill(), revive),
    ...CRASH_POINTS.map((point) =>
      ofOne(`gateway killed ${point.replace('_', ' ')}`, (gateway) => crash(gateway, point), revive, {
        holdMs: 200,
      }),
    ),
    ofOne(
      'gateway paused beyond its leases',
      async (gateway) => gateway.pause(),
      async (gateway) => gateway.resume(),
      { holdMs: leaseMs * 1.7, stopsCompleting: paused },
    ),
    ...(onSqlite
      ? [
          ofOne(
            "gateway's writes to files refused",
            (gateway) => gateway.limitFiles(true),
            (gateway) => gateway.limitFiles(false),
            { stopsCompleting: 'there' },
          ),
        ]
      : []),
    ...(onSqlite && canFailIo
      ? [ioErrors('write', WRITES, 0.3, ofOne), ioErrors('read and write', [...WRITES, ...READS], 0.1, ofOne)]
      : []),
    {
      of: 'gateway',
      name: 'rolling restart',
      inject: () => rollingRestart(gateways),
      heal: async () => {},
      holdMs: 0,
    },
    ...[+1, -1].flatMap((hours) => clockFaults(world, hours)),
  ];
}

function ioErrors(
  calls: string,
  points: readonly string[],
  probability: number,
  ofOne: (
    name: string,
    inject: (gateway: GatewayProcess) => Promise<void>,
    heal: (gateway: GatewayProcess) => Promise<void>,
    more: Pick<Fault, 'stopsCompleting'>,
  ) => Fault,
): Fault {
  return ofOne(
    `gateway's ${calls} calls fail`,
    (gateway) => gateway.failIo(points, probability),
    (gateway) => gateway.failIo(points, 0),
    { stopsCompleting: 'there' },
  );
}

/** Faults of the first gateway, whose wall clock can be moved while it runs and while it is down. */
function clockFaults({ gateways: [first] }: Gateways, hours: number): Fault[] {
  if (!first) throw new Error('there are no gateways');
  const way = hours > 0 ? 'one hour forward' : 'one hour back';
  const restartAt = async (at: number) => {
    await first.kill();
    first.shiftClock(at);
    await first.revive();
  };
  return [
    {
      of: 'gateway',
      name: `wall clock ${way}`,
      inject: async () => first.shiftClock(hours),
      heal: async () => first.shiftClock(0),
      holdMs: 2000,
    },
    {
      of: 'gateway',
      name: `wall clock ${way} across a restart`,
      aim: () => first.number,
      inject: () => restartAt(hours),
      heal: () => restartAt(0),
      // Long enough for the gateway to be warm and under load before it is killed again.
      holdMs: 2500,
    },
  ];
}

/** Restarts the gateways one after the other, as a deployment does. */
async function rollingRestart(gateways: readonly GatewayProcess[]): Promise<void> {
  for (const gateway of gateways) {
    await gateway.shutDown();
    await gateway.revive();
  }
}
