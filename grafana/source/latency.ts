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
          "From a request's head to the end of its answer, without what is passed through: a stream or a WebSocket " +
          'takes the time that it takes. Clients that wait 1 s, 2 s and 4 s between their retries have given up ' +
          'after 7 s. Do: the two panels beside this one tell whether the backend or the gateway is slow; where neither is, ' +
          'duplicates wait for first requests, or merchants read slowly.',
        unit: 's',
        queries: quantiles('oncegate_request_duration_seconds', `${OPERATIONS}, operation!="passthrough"`),
        thresholds: { yellow: 2.5, red: 7 },
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: "The gateway's own part",
        description:
          "Without the backend, and without waiting for another request: store, authentication, and the merchant's sending and " +
          'reading. Do: if "Store latency" rises with it, it is the store; if event-loop lag does, add workers; if neither, ' +
          'merchants send slowly.',
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
          'From sending to the complete answer, or to its failure; for declared operations. Time in which a request waits for one of ' +
          '`upstream.maxConnections` is in it. Above `upstream.responseTimeoutMs` payouts become in doubt. Do: see "Executing" for ' +
          "whether connections are used up; otherwise it is the backend's to explain.",
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
          "Which operation the backend is slow for. One line above the others is that operation's own trouble; all of them " +
          "together are the backend's, the network's or its database's. Do: tell the owners of the backend which.",
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
          'complete: an answer. oversize: an answer too large to be stored. not_sent: surely no byte was sent, the key is free ' +
          'again. unknown: it may have been executed, the key is in doubt. Do: not_sent means the way to the backend (DNS, TCP, ' +
          'TLS, `upstream.maxConnections`); unknown means the backend itself.',
        unit: 'reqps',
        queries: [{ expr: rateBy('result', `${upstream}_count`, OPERATIONS), legend: '{{result}}' }],
        colors: { complete: 'green', not_sent: 'orange', unknown: 'red' },
      }),
    },
  ],
};
