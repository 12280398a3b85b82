import type { Row } from '../dashboard.ts';
import { type PanelOptions, series, stat, states, units } from '../panels.ts';
import { GATEWAYS, lastDay, orZero, quantile, rateBy } from '../queries.ts';

const seconds = 'oncegate_store_duration_seconds';
const commit = 'oncegate_sqlite_commit_duration_seconds';
const MIB = 1024 ** 2;

/** Also on the overview. */
export const storeTakesWrites = (place: Pick<PanelOptions, 'size' | 'details'>) =>
  states({
    title: 'Store takes writes',
    description:
      'Red: several starts in a row have failed. Requests with a new key get 503 `store_unavailable`, replays are served, and ' +
      'the gateway resumes by itself. It turns green with the next start that succeeds. Do: `/readyz` names the reason: a full ' +
      'disk, a file system that is read-only, a Redis without memory.',
    unit: units.Short,
    queries: [{ expr: `oncegate_store_refuses_writes{${GATEWAYS}}`, legend: '{{instance}}' }],
    ...{ good: 'takes writes', bad: 'refuses writes', goodIs: 0 },
    ...{ ...place, runbook: 'oncegatestorerefuseswrites' },
  });

export const store: Row = {
  title: 'Store',
  panels: [
    series({
      title: 'Store latency by command, p99',
      description:
        'After `store.timeoutMs` (500 ms by default) a command counts as failed. start and complete are durable writes, peek is a ' +
        'read: if only the writes are slow, the disk is slow. If all are slow, it is the network, the CPU of the server, or this ' +
        "process (see event-loop lag). Do: look at the disk; on Redis also at the server's slow log and its forks.",
      unit: units.Seconds,
      queries: [{ expr: quantile(0.99, seconds, GATEWAYS, 'command'), legend: '{{command}}' }],
      thresholds: { yellow: 0.05, red: 0.25 },
      ...{ size: [12, 8], runbook: 'oncegatestorefailing' },
    }),
    series({
      title: 'Store errors by command',
      description:
        'Share of commands that failed or were not answered in time. start: merchants get 503, nothing is sent. complete: ' +
        'responses are held back, then sent before they are stored (see "Completed late"). renew: leases may lapse. Do: bring ' +
        'the store back; do not restart gateways while complete fails.',
      unit: units.PercentUnit,
      queries: [
        {
          expr: orZero(
            `${rateBy('command', `${seconds}_count`, `${GATEWAYS}, result="failed", command!="health"`)} / ` +
              `(${rateBy('command', `${seconds}_count`, `${GATEWAYS}, command!="health"`)} > 0)`,
            'command',
          ),
          legend: '{{command}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.001, red: 0.01 } },
      ...{ size: [12, 8], runbook: 'oncegatestorefailing' },
    }),
    series({
      title: 'Store commands',
      onlyEvents: true,
      description:
        'Commands per second. A first execution costs a start and a complete, a replay costs one start. peek: requests that find ' +
        'no free slot, or a store that refuses writes, read first, and duplicates that wait for another gateway read repeatedly. ' +
        'Many releases: the backend refuses requests, or cannot be reached. Do: compare with "Conflicts by kind" and "How ' +
        'sending ended".',
      unit: units.OpsPerSecond,
      queries: [{ expr: rateBy('command', `${seconds}_count`, GATEWAYS), legend: '{{command}}' }],
      size: [12, 8],
    }),
    storeTakesWrites({ size: [12, 8] }),
    stat({
      title: "Steps of Redis' clock, last 24 h",
      description:
        'Steps of more than a second of the wall clock of a Redis server, which each gateway notices when `/readyz` is asked. ' +
        'Redis expires records by that clock: after a step forward records expire early, and a key in doubt can be executed ' +
        'again. Do: slew the clock of that machine (chrony, ntpd), never step it; compare the keys in doubt with the ' +
        "backend's books.",
      unit: units.Short,
      queries: [{ expr: lastDay('oncegate_store_clock_steps_total', GATEWAYS), legend: 'steps' }],
      thresholds: { red: 0.5 },
      ...{ size: [24, 4], runbook: 'oncegatestoreclockstepped' },
    }),
  ],
};

export const sqlite: Row = {
  title: 'SQLite',
  panels: [
    series({
      title: 'Commit time',
      description:
        'Transactions of the writer thread, the wait for other processes and for the disk included; 0 with Redis. Every payout ' +
        'waits for two. Above 50 ms the disk is slow, or another process holds the write lock. Do: look at the disk (fsync), ' +
        'and for backups or `sqlite3` sessions that write.',
      unit: units.Seconds,
      queries: [0.5, 0.99].map((which) => ({
        expr: orZero(`${quantile(which, commit, GATEWAYS)} >= 0`),
        legend: `p${which * 100}`,
      })),
      thresholds: { yellow: 0.05, red: 0.25 },
      size: [6, 8],
    }),
    series({
      title: 'Writer queue',
      description:
        'Writes that wait for the commit before theirs, and are then committed together; 0 with Redis. A queue that grows means ' +
        'that commits are slower than payouts come. Do: see "Commit time"; use a faster disk, or move to Redis. More gateways ' +
        'on the same file do not help.',
      unit: units.Short,
      queries: [{ expr: `oncegate_sqlite_writer_queue{${GATEWAYS}}`, legend: '{{instance}}' }],
      thresholds: { yellow: 100, red: 1000 },
      size: [6, 8],
    }),
    series({
      title: 'Write-ahead log',
      description:
        'The size of `records.db-wal`; 0 with Redis. SQLite empties it by itself, unless something reads for a long time. Above ' +
        '256 MiB reads become slow and the disk fills. Do: end open transactions in `sqlite3`, and backups that hang.',
      unit: units.BytesIEC,
      queries: [{ expr: `oncegate_sqlite_wal_bytes{${GATEWAYS}}`, legend: '{{instance}}' }],
      thresholds: { yellow: 64 * MIB, red: 256 * MIB },
      ...{ size: [6, 8], runbook: 'oncegatewalgrows' },
    }),
    series({
      title: 'Free disk space',
      description:
        'What the file system of `store.path` has left. Below 64 MiB no new key is started. Only gateways with SQLite have a line; ' +
        'without any there is "none" at 0. Do: free space, or give the volume more. Never delete records.',
      unit: units.BytesIEC,
      queries: [
        {
          expr: orZero(`min by (instance) (oncegate_store_disk_free_bytes{${GATEWAYS}})`, 'instance'),
          legend: '{{instance}}',
        },
      ],
      ...{ ground: 'red', thresholds: { yellow: 256 * MIB, green: 1024 * MIB } },
      ...{ size: [6, 8], runbook: 'oncegatediskspacelow' },
    }),
  ],
};
