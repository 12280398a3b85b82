import type { Row } from './model.ts';
import { OPERATIONS, rateBy, series } from './panels.ts';

const NOT_SENT = 'store_unavailable|upstream_unreachable|overloaded|shutting_down';
const REFUSED = 'missing_credentials|invalid_key|insufficient_scope';
const MALFORMED =
  'invalid_request|invalid_target|invalid_body|idempotency_key_invalid|idempotency_key_required';

const requests = 'oncegate_requests_total';
const all = `sum(rate(${requests}{${OPERATIONS}}[$__rate_interval]))`;

export const traffic: Row = {
  title: 'Traffic',
  panels: [
    {
      ...{ width: 12, height: 9 },
      panel: series({
        title: 'Requests by outcome',
        description:
          'How requests ended. "executed", "replayed", "forwarded", "passed_through" and "released" are the backend\'s own ' +
          'answers; every other word is the code of an answer of the gateway. Red lines need somebody: outcome_unknown (see ' +
          '"In doubt by cause"), internal_error (a mistake in the gateway: take the log line and report it).',
        unit: 'reqps',
        queries: [{ expr: rateBy('outcome', requests, OPERATIONS), legend: '{{outcome}}' }],
        stacked: true,
        colors: { executed: 'green', replayed: 'blue', outcome_unknown: 'red', internal_error: 'red' },
      }),
    },
    {
      ...{ width: 12, height: 9 },
      panel: series({
        title: 'Requests by operation',
        description:
          'What merchants call. "none" are requests that were refused before they were matched, "other" named no declared ' +
          'operation in their body, "passthrough" is everything else. A payout operation that falls to nought while ' +
          '"other" rises means that merchants call something that the configuration does not declare. Do: declare it under `operations`.',
        unit: 'reqps',
        queries: [{ expr: rateBy('operation', requests, OPERATIONS), legend: '{{operation}}' }],
        stacked: true,
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Share of requests that could not be sent',
        description:
          'Nothing was sent for these, and the merchant may ask again: store_unavailable (see "Store"), upstream_unreachable ' +
          '(the backend does not take connections), overloaded (`limits.inFlight` is reached: add gateways), shutting_down ' +
          '(normal for seconds in a deployment).',
        unit: 'percentunit',
        queries: [
          {
            expr: `${rateBy('outcome', requests, `${OPERATIONS}, outcome=~"${NOT_SENT}"`)} / ignoring (outcome) group_left () ${all}`,
            legend: '{{outcome}}',
          },
        ],
        thresholds: { yellow: 0.01, red: 0.05 },
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Refused credentials',
        description:
          'Requests without a valid secret key, or with one that may not call the operation. A step after a deployment or a ' +
          'key rotation is a merchant with the old key; a flood of invalid_key from nowhere is somebody who guesses. Do: see ' +
          '"Secret keys loaded"; the balancer\'s log has the addresses.',
        unit: 'reqps',
        queries: [
          {
            expr: rateBy('outcome', requests, `${OPERATIONS}, outcome=~"${REFUSED}"`),
            legend: '{{outcome}}',
          },
        ],
      }),
    },
    {
      ...{ width: 8, height: 8 },
      panel: series({
        title: 'Malformed requests',
        description:
          'Requests that two readers could read differently, and idempotency keys that are malformed or missing. A step up ' +
          'is a merchant with a new client, or somebody who probes. Do: the log has merchant and outcome; the detail in the ' +
          'answer tells the merchant what to change.',
        unit: 'reqps',
        queries: [
          {
            expr: rateBy('outcome', requests, `${OPERATIONS}, outcome=~"${MALFORMED}"`),
            legend: '{{outcome}}',
          },
        ],
      }),
    },
  ],
};
