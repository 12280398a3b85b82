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
          'Retries that got the stored result: payouts that would have been made twice. A steep rise means that merchants do ' +
          "not get the first answers. Do: look at the latency of requests, at the merchants' timeouts, and at the balancer " +
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
          'Duplicates that could not be replayed. in_flight: the first request ran for longer than the wait, so the backend is ' +
          'slow. mismatch: a merchant uses one key for different requests, a mistake in its client. in_doubt: the outcome ' +
          'of the first request is unknown, see above. not_stored: its response was too large.',
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
          'Events in each step. timeout: no complete response came within `upstream.responseTimeoutMs`. connection: the ' +
          'connection broke, or the response was not valid HTTP. status: the backend answered with one of the `unknown` statuses ' +
          'of the operation (502 and 504 by default), because a proxy in front of it gave up. A burst of connection during a ' +
          "backend deployment means that the backend does not drain; a few now and then mean that the backend's keep-alive is " +
          "shorter than `upstream.keepAliveMs`. Do: find each payout in the backend's books and resolve its key.",
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
          'Events in each step: leases that lapsed while their owner was alive, and writes that the store refused because another ' +
          'execution owns the record, by kind. stale complete is the serious one: a response was not stored. Do: look for ' +
          'pauses of the process or of the store at that time.',
        unit: 'short',
        queries: [
          { expr: increaseBy('write', 'oncegate_stale_total', GATEWAYS), legend: 'stale {{write}}' },
          {
            expr: `sum(increase(oncegate_lease_lost_total{${GATEWAYS}}[$__rate_interval]))`,
            legend: 'lease lost',
          },
        ],
        colors: { 'stale complete': 'red' },
      }),
    },
    {
      ...{ width: 12, height: 8 },
      panel: series({
        title: 'Share of payouts without a key',
        description:
          'The share of requests without a key, for each operation that takes one. Every retry of such a request is a second ' +
          'payout. Do: ask the merchants to send keys; when this is 0, set `idempotency.key: required`.',
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
        title: 'Lookups by result',
        description:
          'Events in each step, of operations with `idempotency.inDoubt: lookup`. completed and released: the key is no longer in ' +
          'doubt. unknown: the answer did not decide it, or "no such transaction" came too early to be believed. failed: there was ' +
          'no complete answer. Do: if unknown and failed continue, find the log line "a lookup did not decide a key in doubt"; ' +
          'a 401 there means that the credential of the lookup is wrong.',
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
          'sent again. Only a backend that itself executes each key once pays once. Do: compare with the ' +
          "backend's books, and choose another policy if you find two payouts.",
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
