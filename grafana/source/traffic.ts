import type { Row } from './model.ts';
import { OPERATIONS, rateBy, series } from './panels.ts';

const NOT_SENT = 'store_unavailable|upstream_unreachable|overloaded|shutting_down';
const REFUSED = 'missing_credentials|invalid_key|insufficient_scope';
const MALFORMED =
  'invalid_request|invalid_target|not_declared|idempotency_key_invalid|idempotency_key_required';

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
          'How requests ended. "executed", "replayed", "forwarded", "passed_through" and "released" are responses of the backend; ' +
          'every other word is the code of an answer of the gateway. Red lines need attention: outcome_unknown (see "In doubt by ' +
          'cause"; it includes responses with one of the `unknown` statuses), internal_error (a defect of the gateway: report it with its log line).',
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
          'What merchants call. "none": requests that were refused before they were matched. "other": a declared path, but none ' +
          'of its operations, or unclear which. "undeclared": every other path. If a payout operation falls to 0 while one of ' +
          'these rises, merchants call something that the configuration does not declare. Do: declare it under `operations`.',
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
          'Nothing was sent for these requests, and the merchant may retry: store_unavailable (see "Store takes writes"), ' +
          'upstream_unreachable (the backend does not accept connections), overloaded (no slot became free in time, see "Slots in ' +
          'use", or `limits.inFlight` is reached), shutting_down (normal for seconds during a deployment).',
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
          'key rotation is a merchant with the old key; a sudden flood of invalid_key may be an attacker who guesses. Do: see ' +
          '"Secret keys loaded"; the log of the balancer has the addresses.',
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
          'Requests that two parsers could read differently, and idempotency keys that are malformed or missing. A step up ' +
          'is a merchant with a new client, or an attacker who probes. Do: the log has merchant and outcome; the detail in the ' +
          'answer says what the merchant must change.',
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
