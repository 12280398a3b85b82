import type { Row } from './model.ts';
import { GATEWAYS, OPERATIONS, rateBy, series } from './panels.ts';

const increaseBy = (labels: string, counter: string, selector: string): string =>
  `sum by (${labels}) (increase(${counter}{${selector}}[$__rate_interval]))`;

export const idempotency: Row = {
  title: 'Idempotency',
  panels: [
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Hits',
        description:
          'Retries that got the stored result: payouts that would have been made twice. A steep rise means that merchants ' +
          "do not get the first answers. Do: look at the latency of requests, at merchants' time-outs, and at what stands " +
          'between them and the gateway.',
        unit: 'reqps',
        queries: [
          {
            expr: rateBy('operation', 'oncegate_idempotency_hits_total', OPERATIONS),
            legend: '{{operation}}',
          },
        ],
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Conflicts by kind',
        description:
          'Duplicates that could not be replayed. in_flight: the first one ran for longer than the wait, so the backend is ' +
          'slow. mismatch: a merchant uses one key for different requests, a mistake in its client. in_doubt: the outcome ' +
          'of the first one is unknown, see above. not_stored: its answer was too large.',
        unit: 'reqps',
        queries: [
          { expr: rateBy('kind', 'oncegate_idempotency_conflicts_total', OPERATIONS), legend: '{{kind}}' },
        ],
        colors: { in_doubt: 'red' },
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'In doubt by cause',
        description:
          'Events in each step. timeout: the backend gave no complete answer within `upstream.responseTimeoutMs`. connection: ' +
          'it broke off or answered nonsense. A burst of connection at the time of a backend deployment means that it does ' +
          'not drain; some now and then mean that its keep-alive is shorter than `upstream.keepAliveMs`. Do: look each one up in the backend.',
        unit: 'short',
        queries: [
          {
            expr: increaseBy('operation, cause', 'oncegate_in_doubt_total', OPERATIONS),
            legend: '{{operation}}: {{cause}}',
          },
        ],
        thresholds: { red: 0.5 },
      }),
    },
    {
      ...{ width: 12, height: 8 },
      panel: series({
        title: 'Fencing',
        description:
          'Events in each step. Claims taken over from an owner who had not begun (harmless: it had sent nothing), leases lost, ' +
          'and refused writes by kind. stale settle is the serious one: a result was not stored. Do: look for pauses of the ' +
          'process or of the store at that time.',
        unit: 'short',
        queries: [
          { expr: increaseBy('write', 'oncegate_stale_total', GATEWAYS), legend: 'stale {{write}}' },
          {
            expr: `sum(increase(oncegate_takeovers_total{${GATEWAYS}}[$__rate_interval]))`,
            legend: 'taken over',
          },
          {
            expr: `sum(increase(oncegate_lease_lost_total{${GATEWAYS}}[$__rate_interval]))`,
            legend: 'lease lost',
          },
        ],
        colors: { 'stale settle': 'red' },
      }),
    },
    {
      ...{ width: 12, height: 8 },
      panel: series({
        title: 'Share of payouts without a key',
        description:
          'Of the requests of each operation that takes a key, those that came without one. Every retry of these is a second ' +
          'payout. Do: ask the merchants to send keys; once this is nought, set `idempotency.key: required`.',
        unit: 'percentunit',
        queries: [
          {
            expr:
              `${rateBy('operation', 'oncegate_unprotected_total', OPERATIONS)} / ` +
              rateBy('operation', 'oncegate_requests_total', OPERATIONS),
            legend: '{{operation}}',
          },
        ],
        max: 1,
        thresholds: { yellow: 0.01 },
      }),
    },
    {
      ...{ width: 12, height: 8 },
      panel: series({
        title: 'Lookups by what they led to',
        description:
          'Events in each step, of operations with `idempotency.inDoubt: lookup`. settled and released: the key is no longer in ' +
          'doubt. unknown: the backend did not decide it, or its "no such transaction" cannot be believed yet. failed: it gave no ' +
          'complete answer. Do: where unknown and failed go on and on, find the log line "a lookup did not decide a key in doubt"; ' +
          "a 401 there speaks of the lookup's own credential.",
        unit: 'short',
        queries: [
          {
            expr: increaseBy('operation, result', 'oncegate_lookups_total', OPERATIONS),
            legend: '{{operation}}: {{result}}',
          },
        ],
      }),
    },
    {
      ...{ width: 12, height: 8 },
      panel: series({
        title: 'Sent again while in doubt',
        description:
          'Events in each step, of operations with `idempotency.inDoubt: retry`: requests that may have been executed and were ' +
          'sent once more. Only a backend that itself executes one key once makes one payout of it. Do: compare with the ' +
          "backend's books, and choose another policy if you see two.",
        unit: 'short',
        queries: [
          {
            expr: increaseBy('operation', 'oncegate_sent_again_total', OPERATIONS),
            legend: '{{operation}}',
          },
        ],
      }),
    },
  ],
};
