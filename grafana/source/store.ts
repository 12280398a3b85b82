import type { Row } from './model.ts';
import { GATEWAYS, lastDay, rateBy, series, stat, states } from './panels.ts';

const seconds = 'oncegate_store_duration_seconds';

export const store: Row = {
  title: 'Store',
  panels: [
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Store latency by command, p99',
        description:
          'After `store.timeoutMs` (500 ms by default) a command counts as failed. start and complete are durable writes, peek is a ' +
          'read: if only the writes are slow, the disk is slow. If all are slow, it is the network, the CPU of the server, or this ' +
          "process (see event-loop lag). Do: look at the disk; on Redis also at the server's slow log and its forks.",
        unit: 's',
        queries: [
          {
            expr: `histogram_quantile(0.99, sum by (command, le) (rate(${seconds}_bucket{${GATEWAYS}}[$__rate_interval])))`,
            legend: '{{command}}',
          },
        ],
        thresholds: { yellow: 0.05, red: 0.25 },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Store errors by command',
        description:
          'Share of commands that failed or were not answered in time. start: merchants get 503, nothing is sent. complete: ' +
          'responses are held back, then sent before they are stored (see "Completed late"). renew: leases may lapse. Do: bring ' +
          'the store back; do not restart gateways while complete fails.',
        unit: 'percentunit',
        queries: [
          {
            expr:
              `${rateBy('command', `${seconds}_count`, `${GATEWAYS}, result="failed", command!="health"`)} / ` +
              rateBy('command', `${seconds}_count`, `${GATEWAYS}, command!="health"`),
            legend: '{{command}}',
          },
        ],
        max: 1,
        thresholds: { yellow: 0.001, red: 0.01 },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Store commands',
        description:
          'Commands per second. A first execution costs a start and a complete, a replay costs one start. peek: requests that find ' +
          'no free slot, or a store that refuses writes, read first, and duplicates that wait for another gateway read repeatedly. ' +
          'Many releases: the backend refuses requests, or cannot be reached. Do: compare with "Conflicts by kind" and "How ' +
          'sending ended".',
        unit: 'ops',
        queries: [{ expr: rateBy('command', `${seconds}_count`, GATEWAYS), legend: '{{command}}' }],
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: states({
        title: 'Store takes writes',
        description:
          'Red: several starts in a row have failed. Requests with a new key get 503 `store_unavailable`, replays are served, and ' +
          'the gateway resumes by itself. It turns green with the next start that succeeds. Do: `/readyz` names the reason: a full ' +
          'disk, a file system that is read-only, a Redis without memory.',
        unit: 'short',
        queries: [{ expr: `oncegate_store_refuses_writes{${GATEWAYS}}`, legend: '{{instance}}' }],
        good: 'takes writes',
        bad: 'refuses writes',
        goodIs: 0,
      }),
    },
    {
      ...{ width: 24, height: 4 },
      panel: stat({
        title: "Steps of Redis' clock, last 24 h",
        description:
          'Steps of more than a second of the wall clock of a Redis server, which each gateway notices when `/readyz` is asked. ' +
          'Redis expires records by that clock: after a step forwards records expire early, and a key in doubt can be executed ' +
          'again. Do: slew the clock of that machine (chrony, ntpd), never step it; compare the keys in doubt with the ' +
          "backend's books.",
        unit: 'short',
        queries: [{ expr: lastDay('oncegate_store_clock_steps_total', GATEWAYS), legend: 'steps' }],
        thresholds: { red: 0.5 },
      }),
    },
  ],
};
