import type { Row } from './model.ts';
import { OPERATIONS, quantiles, rateBy, series } from './panels.ts';

const upstream = 'oncegate_upstream_duration_seconds';

export const latency: Row = {
  title: 'Latency',
  panels: [
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Requests',
        description:
          "From the arrival of a request's head until its whole answer was sent. Requests that are passed through are left out: " +
          'streams and WebSockets have no usual length. Clients that wait 1 s, 2 s and 4 s between their retries give up after 7 s. Do: the next two ' +
          'panels show whether the backend or the gateway is slow; if neither is, ' +
          'duplicates wait for first requests, or merchants read slowly.',
        unit: 's',
        queries: quantiles('oncegate_request_duration_seconds', `${OPERATIONS}, operation!="undeclared"`),
        thresholds: { yellow: 2.5, red: 7 },
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: "The gateway's own part",
        description:
          'Without the backend, and without waiting for another request: store, authentication, the queue for a slot, and the ' +
          'merchant\'s sending and reading. Do: if "Store latency" rises too, the store is slow; if "Queued for a slot" does, see ' +
          'there; if event-loop lag does, add workers; if none of them, merchants send slowly.',
        unit: 's',
        queries: quantiles('oncegate_gateway_duration_seconds', OPERATIONS),
        thresholds: { yellow: 0.05, red: 0.25 },
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'The backend',
        description:
          'From sending to the complete response, or to its failure; for declared operations. It includes the time to connect, and excludes the wait ' +
          'for a slot. After `upstream.responseTimeoutMs` the key of a payout is in doubt. Do: ask the owners of the backend; ' +
          'see "Slots in use" for whether slow responses use up the connections.',
        unit: 's',
        queries: quantiles(upstream, OPERATIONS),
        thresholds: { yellow: 2.5, red: 5 },
      }),
    },
    {
      ...{ width: 12, height: 8 },
      panel: series({
        title: 'The backend by operation, p95',
        description:
          'Which operation the backend is slow for. If one line is above the others, that operation is slow; if all rise ' +
          'together, the backend, the network or a database is. Do: report the operation to the owners of the backend.',
        unit: 's',
        queries: [
          {
            expr: `histogram_quantile(0.95, sum by (operation, le) (rate(${upstream}_bucket{${OPERATIONS}}[$__rate_interval])))`,
            legend: '{{operation}}',
          },
        ],
        thresholds: { yellow: 2.5, red: 5 },
      }),
    },
    {
      ...{ width: 12, height: 8 },
      panel: series({
        title: 'How sending ended',
        description:
          'complete: a response. oversize: a response too large to be stored. not_sent: surely no byte was sent, the key is free ' +
          'again. unknown: the request may have been executed, the key is in doubt. Do: for not_sent look at the way to the ' +
          'backend (DNS, TCP, TLS); for unknown look at the backend itself.',
        unit: 'reqps',
        queries: [{ expr: rateBy('result', `${upstream}_count`, OPERATIONS), legend: '{{result}}' }],
        colors: { complete: 'green', not_sent: 'orange', unknown: 'red' },
      }),
    },
  ],
};
