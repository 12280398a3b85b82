import type { Row } from './model.ts';
import { GATEWAYS, series } from './panels.ts';

const GIB = 1024 ** 3;

/** An instance with several workers shows their sum, and the average of their event-loop lags. */
export const processes: Row = {
  title: 'Process',
  panels: [
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'CPU',
        description:
          'Share of one core; with several workers their sum. A process does most of its work on one core, so requests queue near 100 % ' +
          'for each worker. Do: add workers up to the number of cores, then machines.',
        unit: 'percentunit',
        queries: [
          {
            expr: `sum by (instance) (rate(process_cpu_seconds_total{${GATEWAYS}}[$__rate_interval]))`,
            legend: '{{instance}}',
          },
        ],
        thresholds: { yellow: 0.7, red: 0.9 },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Memory',
        description:
          'Resident memory and the heap in use; with several workers their sum. Bodies of requests and responses are held in ' +
          'memory: a peak with many large ones is normal, a line that only rises is a leak. Do: lower `limits.bodyBytes` or ' +
          '`limits.inFlight`; for a leak, take a heap snapshot before the restart.',
        unit: 'bytes',
        queries: [
          { expr: `process_resident_memory_bytes{${GATEWAYS}}`, legend: '{{instance}} resident' },
          { expr: `nodejs_heap_size_used_bytes{${GATEWAYS}}`, legend: '{{instance}} heap' },
        ],
        thresholds: { yellow: GIB, red: 2 * GIB },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'Event-loop lag',
        description:
          'How late the event loop runs its next task; values up to about 10 ms are the resolution of the measurement. The lag adds ' +
          'to every request, and above two thirds of `lock.leaseMs` leases lapse. Do: see CPU; if the CPU is idle, look for a paused ' +
          'machine, CPU limits of the container, or swapping.',
        unit: 's',
        queries: [
          { expr: `nodejs_eventloop_lag_p99_seconds{${GATEWAYS}}`, legend: '{{instance}} p99' },
          { expr: `nodejs_eventloop_lag_max_seconds{${GATEWAYS}}`, legend: '{{instance}} max' },
        ],
        thresholds: { yellow: 0.1, red: 1 },
      }),
    },
    {
      ...{ width: 6, height: 8 },
      panel: series({
        title: 'File descriptors',
        description:
          'Share of the allowed open files that are in use; each connection is one. At 100 % no connection can be opened or accepted. ' +
          'Do: raise the limit (`LimitNOFILE`, `ulimit -n`), and look at "In flight" for connections that never end.',
        unit: 'percentunit',
        queries: [
          {
            expr:
              `sum by (instance) (process_open_fds{${GATEWAYS}}) / ` +
              `sum by (instance) (process_max_fds{${GATEWAYS}})`,
            legend: '{{instance}}',
          },
        ],
        max: 1,
        thresholds: { yellow: 0.7, red: 0.9 },
      }),
    },
  ],
};
