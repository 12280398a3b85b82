import type { Row } from './dashboard.ts';
import { labelOf, toLogs } from './links.ts';
import { series, stat, units } from './panels.ts';
import { GATEWAYS, MERCHANTS, orZero, quantile, rateBy } from './queries.ts';

const requests = 'oncegate_merchant_requests_total';
const REFUSED = 'missing_credentials|invalid_key|insufficient_scope';
const MALFORMED =
  'invalid_request|invalid_target|not_declared|idempotency_key_invalid|idempotency_key_required';
const NOT_SERVED =
  'store_unavailable|upstream_unreachable|overloaded|shutting_down|outcome_unknown|internal_error';

const logsOfMerchant = toLogs('Log lines of this merchant', `merchant=\`${labelOf('merchant')}\``);

const each: Row = {
  title: 'Each merchant',
  panels: [
    series({
      title: 'Requests by merchant',
      description:
        'Requests of the merchants that `metrics.merchants` names; other: all others together. A line that falls to 0 is a ' +
        'merchant who cannot reach the gateway, or has stopped. Do: look at "Refused credentials", then ask the merchant.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('merchant', requests, MERCHANTS), legend: '{{merchant}}' }],
      stacked: true,
      dataLinks: [logsOfMerchant],
      size: [12, 9],
    }),
    series({
      title: 'Share not served, by merchant',
      description:
        "The share of a merchant's requests that the gateway or the backend failed, or whose outcome is unknown. One line above " +
        'the others: look at what that merchant calls. All lines: it is the gateway, the store or the backend. Do: see the ' +
        'overview.',
      unit: units.PercentUnit,
      queries: [
        {
          expr: orZero(
            `${rateBy('merchant', requests, `${MERCHANTS}, outcome=~"${NOT_SERVED}"`)} / ` +
              `(${rateBy('merchant', requests, MERCHANTS)} > 0)`,
            'merchant',
          ),
          legend: '{{merchant}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.001, red: 0.01 } },
      dataLinks: [logsOfMerchant],
      ...{ size: [12, 9], details: 'overview', runbook: 'oncegateavailabilityburnsfast' },
    }),
    series({
      title: 'Outcomes of the chosen merchants',
      onlyEvents: true,
      description:
        'How their requests ended. "executed", "replayed", "forwarded", "passed_through" and "released" are responses of the ' +
        'backend; every other word is the code of an answer of the gateway. Do: docs/merchants.md says what a merchant does ' +
        'about each.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('outcome', requests, MERCHANTS), legend: '{{outcome}}' }],
      stacked: true,
      colors: { executed: 'green', replayed: 'blue', outcome_unknown: 'red', internal_error: 'red' },
      dataLinks: [toLogs('Log lines of this outcome', `outcome=\`${labelOf('outcome')}\``)],
      size: [12, 9],
    }),
    series({
      title: 'Latency by merchant, p95',
      description:
        "From the arrival of a request's head until its whole answer was sent, the backend included. One line above the others: " +
        'that merchant calls a slow operation, sends slowly, or waits for its own first requests. Do: compare with the latency ' +
        'of all in the details.',
      unit: units.Seconds,
      queries: [
        {
          expr: quantile(0.95, 'oncegate_merchant_request_duration_seconds', MERCHANTS, 'merchant'),
          legend: '{{merchant}}',
        },
      ],
      thresholds: { yellow: 2.5, red: 7 },
      dataLinks: [logsOfMerchant],
      ...{ size: [12, 9], details: 'runtime', runbook: 'oncegateupstreamslow' },
    }),
    stat({
      title: 'In doubt by merchant, last 24 h',
      description:
        'Executions whose outcome is unknown, by merchant. It counts what came into doubt; what is in doubt now is on the ' +
        "overview. Do: find each payout in the backend's books and resolve its key; then tell the merchant to retry.",
      unit: units.Short,
      queries: [
        {
          expr: `sum by (merchant) (increase(oncegate_merchant_in_doubt_total{${MERCHANTS}}[24h]))`,
          legend: '{{merchant}}',
        },
      ],
      thresholds: { red: 0.5 },
      ...{ size: [12, 7], details: 'idempotency', runbook: 'oncegateindoubt' },
    }),
    series({
      title: 'Replays by merchant',
      description:
        'Retries that got the stored result. A merchant with many does not get the first answers: its time limit is shorter ' +
        'than the backend needs, or its network loses them. Do: compare its time limit with "Latency by merchant, p95".',
      unit: units.RequestsPerSecond,
      queries: [
        { expr: rateBy('merchant', requests, `${MERCHANTS}, outcome="replayed"`), legend: '{{merchant}}' },
      ],
      dataLinks: [logsOfMerchant],
      ...{ size: [12, 7], details: 'idempotency' },
    }),
  ],
};

const limits: Row = {
  title: 'Limits and refusals',
  panels: [
    series({
      title: 'Merchants over their limits',
      description:
        'Requests that were refused with 429 because their merchant sends too many (requests), or too many at once (in_flight). ' +
        'Nothing was sent for them. Do: the next panel or the log names the merchant (outcome "rate_limited"); ask them to send ' +
        'less, or raise their limit under `limits.perMerchant`.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('reason', 'oncegate_rate_limited_total', GATEWAYS), legend: '{{reason}}' }],
      dataLinks: [toLogs('Log lines', 'outcome=`rate_limited`')],
      size: [8, 8],
    }),
    series({
      title: 'Over the limit, by merchant',
      description:
        'Requests that were refused with 429, by merchant. A burst now and then is what the limit is for; a line that stays is ' +
        'a merchant who retries without a pause, or whose limit is too low. Do: ask them to wait for `Retry-After`.',
      unit: units.RequestsPerSecond,
      queries: [
        {
          expr: rateBy('merchant', requests, `${MERCHANTS}, outcome="rate_limited"`),
          legend: '{{merchant}}',
        },
      ],
      dataLinks: [logsOfMerchant],
      size: [8, 8],
    }),
    series({
      title: 'Reused keys, by merchant',
      description:
        'Requests that were refused with 422 because their idempotency key had been used for another request. It is a mistake ' +
        'in the client of the merchant, who may believe that the payout was made. Do: tell the merchant; docs/merchants.md ' +
        'explains keys.',
      unit: units.RequestsPerSecond,
      queries: [
        {
          expr: rateBy('merchant', requests, `${MERCHANTS}, outcome="idempotency_key_reused"`),
          legend: '{{merchant}}',
        },
      ],
      dataLinks: [logsOfMerchant],
      size: [8, 8],
    }),
    series({
      title: 'Refused credentials',
      description:
        'Requests without a valid secret key, or with one that may not call the operation; of no merchant, because it is ' +
        'unknown. A step after a deployment or a key rotation is a merchant with the old key; a sudden flood of invalid_key may ' +
        'be an attacker who guesses. Do: see "Secret keys loaded"; the log of the balancer has the addresses.',
      unit: units.RequestsPerSecond,
      queries: [
        {
          expr: rateBy('outcome', 'oncegate_requests_total', `${GATEWAYS}, outcome=~"${REFUSED}"`),
          legend: '{{outcome}}',
        },
      ],
      dataLinks: [toLogs('Log lines of this outcome', `outcome=\`${labelOf('outcome')}\``)],
      ...{ size: [12, 8], details: 'runtime', runbook: 'rotate-secret-keys' },
    }),
    series({
      title: 'Malformed requests',
      description:
        'Requests that two parsers could read differently, and idempotency keys that are malformed or missing. A step up ' +
        'is a merchant with a new client, or an attacker who probes. Do: the log has merchant and outcome; the detail in the ' +
        'answer says what the merchant must change.',
      unit: units.RequestsPerSecond,
      queries: [
        {
          expr: rateBy('outcome', 'oncegate_requests_total', `${GATEWAYS}, outcome=~"${MALFORMED}"`),
          legend: '{{outcome}}',
        },
      ],
      dataLinks: [toLogs('Log lines of this outcome', `outcome=\`${labelOf('outcome')}\``)],
      size: [12, 8],
    }),
  ],
};

export const merchants = {
  page: 'merchants' as const,
  title: 'Merchants',
  description: 'The merchants that metrics.merchants names, and all others together as "other".',
  choices: [{ name: 'merchant', label: 'Merchant', metric: requests }],
  rows: [each, limits],
};
