import type { Row } from '../dashboard.ts';
import { series, units } from '../panels.ts';
import { GATEWAYS, orZero } from '../queries.ts';

const GIB = 1024 ** 3;

/** An instance with several workers shows their sum, and the average of their event-loop lags. */
export const processes: Row = {
  title: 'Processes and connections',
  panels: [
    series({
      title: 'CPU',
      description:
        'Share of one core; with several workers their sum. A process does most of its work on one core, so requests queue near ' +
        '100 % for each worker. Do: add workers up to the number of cores, then machines.',
      unit: units.PercentUnit,
      queries: [
        {
          expr: `sum by (instance) (rate(process_cpu_seconds_total{${GATEWAYS}}[$__rate_interval]))`,
          legend: '{{instance}}',
        },
      ],
      thresholds: { yellow: 0.7, red: 0.9 },
      size: [6, 8],
    }),
    series({
      title: 'Memory',
      description:
        'Resident memory and the heap in use; with several workers their sum. Bodies of requests and responses are held in ' +
        'memory: a peak with many large ones is normal, a line that only rises is a leak. Do: lower `limits.bodyBytes` or ' +
        '`limits.inFlight`; for a leak, take a heap snapshot before the restart.',
      unit: units.BytesIEC,
      queries: [
        { expr: `process_resident_memory_bytes{${GATEWAYS}}`, legend: '{{instance}} resident' },
        { expr: `nodejs_heap_size_used_bytes{${GATEWAYS}}`, legend: '{{instance}} heap' },
      ],
      thresholds: { yellow: GIB, red: 2 * GIB },
      size: [6, 8],
    }),
    series({
      title: 'Event-loop lag',
      description:
        'How late the event loop runs its next task; values up to about 10 ms are the resolution of the measurement. The lag adds ' +
        'to every request, and above two thirds of `lock.leaseMs` leases lapse. Do: see CPU; if the CPU is idle, look for a paused ' +
        'machine, CPU limits of the container, or swapping.',
      unit: units.Seconds,
      queries: [
        { expr: `nodejs_eventloop_lag_p99_seconds{${GATEWAYS}}`, legend: '{{instance}} p99' },
        { expr: `nodejs_eventloop_lag_max_seconds{${GATEWAYS}}`, legend: '{{instance}} max' },
      ],
      thresholds: { yellow: 0.1, red: 1 },
      size: [6, 8],
    }),
    series({
      title: 'File descriptors',
      description:
        'Share of the allowed open files that are in use; each connection is one. At 100 % no connection can be opened or accepted. ' +
        'Do: raise the limit (`LimitNOFILE`, `ulimit -n`), and look at "In flight" for connections that never end.',
      unit: units.PercentUnit,
      queries: [
        {
          expr:
            `sum by (instance) (process_open_fds{${GATEWAYS}}) / ` +
            `sum by (instance) (process_max_fds{${GATEWAYS}})`,
          legend: '{{instance}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.7, red: 0.9 } },
      size: [6, 8],
    }),
    series({
      title: 'Garbage collection',
      description:
        'Share of the time that the processes spend in garbage collection. Above a few percent it delays requests. Do: look at ' +
        '"Memory"; give the processes a larger heap, or add gateways.',
      unit: units.PercentUnit,
      queries: [
        {
          // Node has no number before the first collection.
          expr: orZero(
            `sum by (instance) (rate(nodejs_gc_duration_seconds_sum{${GATEWAYS}}[$__rate_interval]))`,
            'instance',
          ),
          legend: '{{instance}}',
        },
      ],
      thresholds: { yellow: 0.05, red: 0.2 },
      size: [8, 7],
    }),
    series({
      title: 'In flight',
      description:
        'Requests that are being answered, or executed for a merchant who has left. At `limits.inFlight` (10,000 per process by ' +
        'default) new requests get 503 `overloaded`. Do: if it rises while traffic does not, something is slow, see "Latency of ' +
        'requests"; if it does not fall after a peak, requests hang.',
      unit: units.Short,
      queries: [{ expr: `oncegate_in_flight{${GATEWAYS}}`, legend: '{{instance}}' }],
      thresholds: { yellow: 5000, red: 9000 },
      ...{ size: [8, 7], runbook: 'oncegateinflightfull' },
    }),
    series({
      title: 'Refused connections',
      description:
        'Connections that were closed at once because `limits.connections` others (20,000 per process by default) were open. ' +
        'Do: look for clients that open connections and do not use them; if the traffic is real, raise the limit and the ' +
        'number of open files, or add gateways.',
      unit: units.Short,
      queries: [
        {
          expr: `sum by (instance) (increase(oncegate_connections_refused_total{${GATEWAYS}}[$__rate_interval]))`,
          legend: '{{instance}}',
        },
      ],
      thresholds: { red: 1 },
      ...{ size: [8, 7], runbook: 'oncegateconnectionsrefused' },
    }),
  ],
};
