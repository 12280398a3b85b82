import type { Row } from '../dashboard.ts';
import { series, units } from '../panels.ts';
import { GATEWAYS, OPERATIONS, quantile, quantiles, rateBy } from '../queries.ts';

const upstream = 'oncegate_upstream_duration_seconds';

export const latency: Row = {
  title: 'Latency',
  panels: [
    series({
      title: 'Latency of requests',
      description:
        "From the arrival of a request's head until its whole answer was sent. Requests that are passed through are left out: " +
        'streams and WebSockets have no usual length. Clients that wait 1 s, 2 s and 4 s between their retries give up after 7 ' +
        's. Do: the next two panels show whether the backend or the gateway is slow; if neither is, duplicates wait for first ' +
        'requests, or merchants read slowly.',
      unit: units.Seconds,
      queries: quantiles('oncegate_request_duration_seconds', `${OPERATIONS}, operation!="undeclared"`),
      thresholds: { yellow: 2.5, red: 7 },
      size: [8, 8],
    }),
    series({
      title: "The gateway's own part",
      description:
        'Without the backend, and without waiting for another request: store, authentication, the queue for a slot, and the ' +
        'merchant\'s sending and reading. Do: if "Store latency" rises too, the store is slow; if "Queued for a slot" does, see ' +
        'there; if event-loop lag does, add workers; if none of them, merchants send slowly.',
      unit: units.Seconds,
      queries: quantiles('oncegate_gateway_duration_seconds', OPERATIONS),
      thresholds: { yellow: 0.025, red: 0.25 },
      ...{ size: [8, 8], runbook: 'oncegatelatencyburnsfast' },
    }),
    series({
      title: 'The backend',
      description:
        'From sending to the complete response, or to its failure; for declared operations. It includes the time to connect, ' +
        'and excludes the wait for a slot. After `upstream.responseTimeoutMs` the key of a payout is in doubt. Do: ask the ' +
        'owners of the backend; see "Slots in use" for whether slow responses use up the connections.',
      unit: units.Seconds,
      queries: quantiles(upstream, OPERATIONS),
      thresholds: { yellow: 2.5, red: 5 },
      ...{ size: [8, 8], runbook: 'oncegateupstreamslow' },
    }),
  ],
};

export const backend: Row = {
  title: 'Backend',
  panels: [
    series({
      title: 'The backend by operation, p95',
      description:
        'Which operation the backend is slow for. If one line is above the others, that operation is slow; if all rise ' +
        'together, the backend, the network or a database is. Do: report the operation to the owners of the backend.',
      unit: units.Seconds,
      queries: [{ expr: quantile(0.95, upstream, OPERATIONS, 'operation'), legend: '{{operation}}' }],
      thresholds: { yellow: 2.5, red: 5 },
      ...{ size: [12, 8], runbook: 'oncegateupstreamslow' },
    }),
    series({
      title: 'How sending ended',
      description:
        'complete: a response. oversize: a response too large to be stored. not_sent: surely no byte was sent, the key is free ' +
        'again. unknown: the request may have been executed, the key is in doubt. Do: for not_sent look at the way to the ' +
        'backend (DNS, TCP, TLS); for unknown look at the backend itself.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('result', `${upstream}_count`, OPERATIONS), legend: '{{result}}' }],
      colors: { complete: 'green', not_sent: 'orange', unknown: 'red' },
      ...{ size: [12, 8], runbook: 'oncegateupstreamunreachable' },
    }),
    series({
      title: 'Slots in use',
      description:
        'Share of the connections to the backend that are in use, of `upstream.maxConnections` (64 per process by default). At ' +
        '100 % requests queue. Streams and lookups are not counted. Do: if "The backend" is slow, the backend is the ' +
        'bottleneck; if the backend is fast, raise `upstream.maxConnections` or add gateways.',
      unit: units.PercentUnit,
      queries: [
        {
          expr:
            `sum by (instance) (oncegate_upstream_slots_in_use{${GATEWAYS}}) / ` +
            `(sum by (instance) (oncegate_upstream_slots{${GATEWAYS}}) > 0)`,
          legend: '{{instance}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.8, red: 1 } },
      ...{ size: [8, 8], runbook: 'oncegateslotsfull' },
    }),
    series({
      title: 'Queued for a slot',
      description:
        'Requests that wait for a connection to the backend. Nothing is stored or sent for them yet. At `upstream.maxQueued` ' +
        '(1,000 per process by default), or after `upstream.queueTimeoutMs`, they get 503 `overloaded`. It is 0 on a good day, ' +
        'and short bursts are harmless. Do: see "Slots in use".',
      unit: units.Short,
      queries: [{ expr: `oncegate_upstream_slots_queued{${GATEWAYS}}`, legend: '{{instance}}' }],
      thresholds: { yellow: 1, red: 500 },
      ...{ size: [8, 8], runbook: 'oncegateoverloaded' },
    }),
    series({
      title: 'Streams',
      description:
        'Passed-through requests and WebSockets that are open; each has its own connection to the backend. At ' +
        '`upstream.maxStreams` (256 per process by default) one more gets 503 `overloaded`, and nothing is sent. Do: if it is at ' +
        'the limit, raise `upstream.maxStreams` as far as the backend can serve.',
      unit: units.Short,
      queries: [{ expr: `oncegate_streams{${GATEWAYS}}`, legend: '{{instance}}' }],
      thresholds: { yellow: 200, red: 256 },
      size: [8, 8],
    }),
  ],
};
