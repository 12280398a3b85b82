import type { Row } from '../dashboard.ts';
import { labelOf, toLogs } from '../links.ts';
import { series, units } from '../panels.ts';
import { GATEWAYS, OPERATIONS, orZero, rateBy } from '../queries.ts';

export const duplicates: Row = {
  title: 'Duplicates',
  panels: [
    series({
      title: 'Hits',
      description:
        'Retries that got the stored result: payouts that would have been made twice. A steep rise means that merchants do ' +
        "not get the first answers. Do: look at the latency of requests, at the merchants' timeouts, and at the balancer " +
        'between them and the gateway.',
      unit: units.RequestsPerSecond,
      queries: [
        { expr: rateBy('operation', 'oncegate_idempotency_hits_total', OPERATIONS), legend: '{{operation}}' },
      ],
      dataLinks: [toLogs('Log lines', `operation=\`${labelOf('operation')}\` | outcome=\`replayed\``)],
      size: [8, 8],
    }),
    series({
      title: 'Conflicts by kind',
      description:
        'Duplicates that could not be replayed. in_flight: the first request ran for longer than the wait, so the backend is ' +
        'slow. mismatch: a merchant uses one key for different requests, a mistake in its client. in_doubt: the outcome ' +
        'of the first request is unknown. not_stored: its response was too large. Do: for mismatch tell the merchant; for in_doubt ' +
        'resolve the key; for not_stored raise `idempotency.maxStoredBytes`.',
      unit: units.RequestsPerSecond,
      queries: [
        { expr: rateBy('kind', 'oncegate_idempotency_conflicts_total', OPERATIONS), legend: '{{kind}}' },
      ],
      colors: { in_doubt: 'red' },
      size: [8, 8],
    }),
    series({
      title: 'Share of payouts without a key',
      description:
        'The share of requests without a key, for each operation that takes one. Every retry of such a request is a second ' +
        'payout. Do: ask the merchants to send keys; when this is 0, set `idempotency.key: required`.',
      unit: units.PercentUnit,
      queries: [
        {
          expr: orZero(
            `${rateBy('operation', 'oncegate_unprotected_total', OPERATIONS)} / ` +
              `(${rateBy('operation', 'oncegate_requests_total', OPERATIONS)} > 0)`,
            'operation',
          ),
          legend: '{{operation}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.01 } },
      ...{ size: [8, 8], details: 'merchants', runbook: 'oncegateunprotectedpayouts' },
    }),
    series({
      title: 'Waiting',
      description:
        'Duplicates that wait for the result of the first request. At `idempotency.maxWaiters` (5,000 per process by default) ' +
        'further duplicates get 409 `request_in_flight` at once. A high number means that merchants retry faster than the ' +
        'backend answers. Do: see "The backend"; the log shows whether one merchant retries without a pause.',
      unit: units.Short,
      queries: [{ expr: `oncegate_waiting{${GATEWAYS}}`, legend: '{{instance}}' }],
      thresholds: { yellow: 2500, red: 4500 },
      ...{ size: [12, 8], details: 'runtime' },
    }),
    series({
      title: 'Executing',
      description:
        'Keys that are being executed: from the start of a key until its response is stored. If it is far above "Slots in use", ' +
        'responses wait for the store. Do: see "Store latency".',
      unit: units.Short,
      queries: [{ expr: `oncegate_executing{${GATEWAYS}}`, legend: '{{instance}}' }],
      ...{ size: [12, 8], details: 'runtime' },
    }),
  ],
};
