import type { Row } from './model.ts';
import { GATEWAYS, rateBy, series } from './panels.ts';

const seconds = 'oncegate_store_duration_seconds';

export const store: Row = {
  title: 'Store',
  panels: [
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Store latency by command, p99',
        description:
          'Past `store.timeoutMs` (500 ms by default) a command counts as failed. settle is a durable write: if it alone is slow, ' +
          "the disk is. If all are, it is the network, the server's CPU, or this process (see event-loop lag). Do: look at the " +
          "server's slow log, its disk and its forks.",
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
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Store errors by command',
        description:
          'Share of commands that failed or were not answered in time. claim and begin: merchants get 503, nothing is sent. settle: ' +
          'answers are held back, then given without being stored (see "Settled late"). renew: leases may lapse. Do: bring the ' +
          'store back; do not restart gateways while settle fails.',
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
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Store commands',
        description:
          'Commands a second. A first execution costs a claim, a begin and a settle; a replay one claim. Many more claims than ' +
          'requests with keys: duplicates wait and look. Many releases: the backend refuses, or cannot be reached. Do: compare ' +
          'with "Conflicts by kind" and "How sending ended".',
        unit: 'ops',
        queries: [{ expr: rateBy('command', `${seconds}_count`, GATEWAYS), legend: '{{command}}' }],
      }),
    },
  ],
};
