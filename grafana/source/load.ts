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
          'Requests that are being answered, or executed for a merchant who has left. At `limits.inFlight` (10,000 a process by ' +
          'default) new ones get 503 `overloaded`. Do: if it rises while traffic does not, something is slow, see "Latency"; ' +
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
          'Executions under a key that run now. Above `upstream.maxConnections` (64 a process by default) they wait for a ' +
          'connection to the backend. Do: raise it if the backend can take more; otherwise the backend is the limit.',
        unit: 'short',
        queries: [{ expr: `oncegate_executing{${GATEWAYS}}`, legend: '{{instance}}' }],
        thresholds: { yellow: 64 },
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Waiting',
        description:
          "Duplicates that wait for the first one's result. At `idempotency.maxWaiters` (5,000 a process by default) more of " +
          'them get 409 `request_in_flight` at once. A high number means that merchants retry faster than the backend answers. ' +
          'Do: see "The backend"; a single merchant who retries without a pause shows in the log.',
        unit: 'short',
        queries: [{ expr: `oncegate_waiting{${GATEWAYS}}`, legend: '{{instance}}' }],
        thresholds: { yellow: 2500, red: 4500 },
      }),
    },
  ],
};
