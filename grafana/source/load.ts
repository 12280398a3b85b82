import type { Row } from './model.ts';
import { GATEWAYS, series } from './panels.ts';

export const load: Row = {
  title: 'Load',
  panels: [
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'In flight',
        description:
          'Requests that are being answered, or executed for a merchant who has left. At `limits.inFlight` (10,000 per process by ' +
          'default) new requests get 503 `overloaded`. Do: if it rises while traffic does not, something is slow, see "Latency"; ' +
          'if it does not fall after a peak, requests hang.',
        unit: 'short',
        queries: [{ expr: `oncegate_in_flight{${GATEWAYS}}`, legend: '{{instance}}' }],
        thresholds: { yellow: 5000, red: 9000 },
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Executing',
        description:
          'Keys that are being executed: from the start of a key until its response is stored. If it is far above "Slots in use", ' +
          'responses wait for the store. Do: see "Store latency".',
        unit: 'short',
        queries: [{ expr: `oncegate_executing{${GATEWAYS}}`, legend: '{{instance}}' }],
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Waiting',
        description:
          'Duplicates that wait for the result of the first request. At `idempotency.maxWaiters` (5,000 per process by default) ' +
          'further duplicates get 409 `request_in_flight` at once. A high number means that merchants retry faster than the ' +
          'backend answers. Do: see "The backend"; the log shows whether one merchant retries without a pause.',
        unit: 'short',
        queries: [{ expr: `oncegate_waiting{${GATEWAYS}}`, legend: '{{instance}}' }],
        thresholds: { yellow: 2500, red: 4500 },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Slots in use',
        description:
          'Connections to the backend that are in use. `upstream.maxConnections` (64 per process by default) is the limit: at it, ' +
          'requests queue. Streams and lookups are not counted. Do: if it is at the limit and "The ' +
          'backend" is slow, the backend is the bottleneck; if the backend is fast, raise `upstream.maxConnections` or add gateways.',
        unit: 'short',
        queries: [{ expr: `oncegate_upstream_slots_in_use{${GATEWAYS}}`, legend: '{{instance}}' }],
        thresholds: { yellow: 64 },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Queued for a slot',
        description:
          'Requests that wait for a connection to the backend. Nothing is stored or sent for them yet. At `upstream.maxQueued` ' +
          '(1,000 per process by default), or after `upstream.queueTimeoutMs`, they get 503 `overloaded`. It is 0 on a good day, ' +
          'and short bursts are harmless. Do: see "Slots in use".',
        unit: 'short',
        queries: [{ expr: `oncegate_upstream_slots_queued{${GATEWAYS}}`, legend: '{{instance}}' }],
        thresholds: { yellow: 1, red: 500 },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Refused connections',
        description:
          'Connections that were closed at once because `limits.connections` others (20,000 per process by default) were open. ' +
          'Do: look for clients that open connections and do not use them; if the traffic is real, raise the limit and the ' +
          'number of open files, or add gateways.',
        unit: 'short',
        queries: [
          {
            expr: `sum by (instance) (increase(oncegate_connections_refused_total{${GATEWAYS}}[$__rate_interval]))`,
            legend: '{{instance}}',
          },
        ],
        thresholds: { red: 1 },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Streams',
        description:
          'Passed-through requests and WebSockets that are open; each has its own connection to the backend. At ' +
          '`upstream.maxStreams` (256 per process by default) one more gets 503 `overloaded`, and nothing is sent. Do: if it is at ' +
          'the limit, raise `upstream.maxStreams` as far as the backend can serve.',
        unit: 'short',
        queries: [{ expr: `oncegate_streams{${GATEWAYS}}`, legend: '{{instance}}' }],
        thresholds: { yellow: 200, red: 256 },
      }),
    },
  ],
};
