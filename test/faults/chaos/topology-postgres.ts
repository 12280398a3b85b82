import { setTimeout as sleep } from 'node:timers/promises';
import { TcpProxy } from '../../support/breakable-wire.ts';
import {
  launchPostgres,
  launchStandby,
  type PostgresServer,
  SHORT_LOG_FILES,
  TABLES_FULL,
} from '../../support/postgres-process.ts';
import { until } from '../../support/until.ts';
import type { StoreFault, Topology } from './topology.ts';
import { faultOf, lateRequests } from './topology-redis.ts';

/** Long enough for payouts. */
const APART_MS = 700;
/** Every standby is synchronous. */
const SYNCHRONOUS = { synchronous_standby_names: '*' };
/** A standby follows a primary again as soon as that is back. By default it may wait for five seconds. */
const FOLLOWS_AT_ONCE = { wal_retrieve_retry_interval: '100ms' };

const WAITING = `wait_event = 'SyncRep'`;
const OF_GATEWAYS = `application_name = 'oncegate'`;

/** Sends a signal to the backends that a condition names. */
const signal = (
  { admin }: PostgresServer,
  how: 'pg_cancel_backend' | 'pg_terminate_backend',
  which: string,
) => admin.query(`SELECT ${how}(pid) FROM pg_stat_activity WHERE ${which}`);

/** Faults of the server that gateways reach through this address. */
function faultsOf(wire: TcpProxy, find: () => PostgresServer): StoreFault[] {
  return [
    faultOf('postgres killed', find, { inject: (server) => server.kill(), heal: (server) => server.start() }),
    faultOf('postgres frozen', find, {
      inject: (server) => server.freeze(),
      heal: (server) => server.thaw(),
    }),
    faultOf('backends killed', find, {
      inject: (server) => signal(server, 'pg_terminate_backend', OF_GATEWAYS),
      heal: () => {},
    }),
    faultOf('statements cancelled', find, {
      inject: async (server) => {
        for (let round = 0; round < 20; round++) {
          await signal(server, 'pg_cancel_backend', `${OF_GATEWAYS} AND state = 'active'`);
          await sleep(10);
        }
      },
      heal: () => {},
    }),
    {
      name: 'postgres cut off',
      inject: () => {
        wire.refuse(true);
        wire.cut();
      },
      heal: () => wire.refuse(false),
    },
    {
      name: 'replies of postgres delayed',
      inject: () => wire.delayReplies(150),
      heal: () => wire.delayReplies(0),
      completesOn: true,
    },
    {
      name: 'replies of postgres lost',
      inject: () => wire.swallowReplies(true),
      heal: () => wire.swallowReplies(false),
    },
    lateRequests(() => wire, 'postgres'),
    faultOf('disk full, postgres ends', find, {
      // No byte can be written, and the server ends when it writes its log.
      inject: (server) => server.limitFiles(1),
      heal: (server) => server.restart(),
    }),
  ];
}

/** Adds rows that are no records of anybody until one is refused, a few at a time, because what a refused statement used is free again. */
const FILL = `DO $$ BEGIN LOOP
    SET LOCAL synchronous_commit = off;
    INSERT INTO oncegate.records (id, state, expires_at, due)
      SELECT decode(md5(random()::text), 'hex'), 'completed', 'infinity', 'infinity' FROM generate_series(1, 5);
    COMMIT;
  END LOOP; END $$`;

/** The log can be written, and the table of records, which is the longest file, cannot grow. */
const fullTables = (server: PostgresServer): StoreFault => ({
  name: 'disk full, tables cannot grow',
  inject: async () => {
    const { rows } = await server.admin.query(`SELECT pg_relation_size('oncegate.records')::int AS bytes`);
    server.limitFiles(rows[0].bytes + TABLES_FULL);
    const error = await server.admin.query(FILL).catch((error: unknown) => error);
    if (!String(error).includes('could not extend file')) throw error;
  },
  heal: () => server.limitFiles('unlimited'),
});

/** An address that leads to the server that is the primary. */
async function addressOf({ port }: PostgresServer): Promise<TcpProxy> {
  const wire = new TcpProxy(port);
  await wire.listen();
  return wire;
}

const configOf = ({ host, port }: TcpProxy, mayLoseOnFailover = false): Topology['config'] => ({
  store: {
    kind: 'postgres',
    url: `postgres://oncegate@${host}:${port}/postgres`,
    durability: { mayLoseOnFailover },
  },
});

/** One server. */
export async function startPostgres(): Promise<Topology> {
  const server = await launchPostgres({}, SHORT_LOG_FILES);
  const wire = await addressOf(server);
  return {
    config: configOf(wire),
    faults: [...faultsOf(wire, () => server), fullTables(server)],
    stop: async () => {
      await wire.close();
      await server.stop();
    },
  };
}

/** A primary and a standby. @param isSynchronous false: a failover loses writes */
export async function startPostgresPair(isSynchronous: boolean): Promise<Topology> {
  const settings = isSynchronous ? SYNCHRONOUS : undefined;
  let primary = await launchPostgres();
  let standby = await launchStandby(primary, FOLLOWS_AT_ONCE);
  if (settings) await primary.set(settings);
  const wire = await addressOf(primary);
  await following(primary);

  /** The standby becomes the primary, and the old primary is gone from the address. `cut`: and so are its connections. */
  const failOver = async (cut: boolean) => {
    const old = primary;
    if (settings) await standby.set(settings);
    await standby.promote();
    primary = standby;
    wire.aimAt(primary.port);
    if (cut) wire.cut();
    return old;
  };
  /** A new standby in place of the old primary, as operators make one. */
  const rejoin = async (old: PostgresServer) => {
    await old.stop();
    standby = await launchStandby(primary, FOLLOWS_AT_ONCE);
    await following(primary);
  };
  const failovers = [
    faultOf('primary killed, failover', () => primary, {
      inject: async (old) => {
        await old.kill();
        await failOver(true);
      },
      heal: rejoin,
    }),
    faultOf('primary frozen, failover, its connections stay open', () => primary, {
      inject: async (old) => {
        old.freeze();
        await failOver(false);
      },
      heal: rejoin,
    }),
    faultOf('primary runs on alone, failover, its connections stay open', () => primary, {
      inject: () => failOver(false),
      heal: rejoin,
    }),
    faultOf('failover with writes that the standby does not have', () => primary, {
      inject: async (old) => {
        await standby.kill();
        for (let waitedMs = 0; waitedMs < APART_MS; waitedMs += 50) {
          // What waits becomes visible without being on the standby.
          await signal(old, 'pg_cancel_backend', WAITING);
          await sleep(50);
        }
        await old.kill();
        await standby.start();
        await failOver(true);
      },
      heal: rejoin,
    }),
  ];
  return {
    config: configOf(wire, !isSynchronous),
    faults: [
      ...failovers,
      faultOf('standby killed', () => standby, {
        inject: (server) => server.kill(),
        heal: async (server) => {
          await server.start();
          await following(primary);
        },
      }),
      faultOf('standby frozen', () => standby, {
        inject: (server) => server.freeze(),
        heal: (server) => server.thaw(),
      }),
      faultOf('waits for the standby cancelled', () => primary, {
        inject: async (server) => {
          standby.freeze();
          await sleep(APART_MS);
          await signal(server, 'pg_cancel_backend', WAITING);
        },
        heal: () => standby.thaw(),
      }),
      ...faultsOf(wire, () => primary),
    ],
    stop: async () => {
      await wire.close();
      await Promise.all([primary.stop(), standby.stop()]);
    },
  };
}

/** Resolves when the server has a standby that follows it. */
const following = ({ admin }: PostgresServer) =>
  until(async () => {
    const { rows } = await admin.query(`SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'`);
    return rows.length > 0;
  });
