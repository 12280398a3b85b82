import { FIRING, type PageOptions, type Row } from './dashboard.ts';
import { labelOf, toLogs } from './links.ts';
import { added, availability, FAILED, FAILED_BEHIND, notServed, OBJECTIVES, results } from './objectives.ts';
import { series, stat, states, units } from './panels.ts';
import {
  GATEWAYS,
  increaseBy,
  MERCHANTS,
  OPERATIONS,
  ofTheStore,
  orZero,
  quantile,
  quantiles,
  rateBy,
} from './queries.ts';

const requests = 'oncegate_requests_total';
const inDoubt = 'oncegate_in_doubt_total';
const merchantRequests = 'oncegate_merchant_requests_total';
const NOT_SERVED = `${FAILED}|${FAILED_BEHIND}|overloaded`;

const logsOfOutcome = toLogs('Log lines of this outcome', `outcome=\`${labelOf('outcome')}\``);
const logsOfOperation = toLogs('Log lines of this operation', `operation=\`${labelOf('operation')}\``);
const logsOfMerchant = toLogs('Log lines of this merchant', `merchant=\`${labelOf('merchant')}\``);

/** The look of ten seconds: every number is green on a good day. */
const wellBeing: Row = {
  title: 'Are merchants well?',
  panels: [
    stat({
      title: 'Availability, last hour',
      description:
        'with a result: the share of requests for which merchants got a result, whoever failed the others; an answer of the ' +
        'backend with 5xx counts as a failure; the objective is 99 %. gateway alone: the share that the gateway itself did not ' +
        'fail, which says nothing of the backend; the objective is 99.9 %. Refusals that a merchant caused do not count. Do: ' +
        '"Share of requests that were not served" and "Answers of the backend" say why.',
      unit: units.PercentUnit,
      decimals: 2,
      queries: [
        { expr: results('1h'), legend: 'with a result' },
        { expr: availability('1h'), legend: 'gateway alone' },
      ],
      own: { 'with a result': { ground: 'red', thresholds: { yellow: 0.95, green: OBJECTIVES.results } } },
      ...{ ground: 'red', thresholds: { yellow: 0.995, green: OBJECTIVES.available } },
      ...{ size: [4, 5], runbook: 'runbook/OncegateResultsBurnFast.md' },
    }),
    stat({
      title: 'Added latency, p99',
      description:
        "What the gateway adds to a request, for all but the slowest hundredth: without the backend's time, and without waiting " +
        'for another request. At most 25 ms is the objective. Do: "The gateway\'s own part" below shows whether it is new; the ' +
        'details show whether it is the store, the queue for a slot or the event loop.',
      unit: units.Seconds,
      decimals: 3,
      queries: [{ expr: orZero(`${added(0.99)} >= 0`), legend: 'added' }],
      thresholds: { yellow: OBJECTIVES.addedSeconds, red: 0.25 },
      ...{ size: [4, 5], runbook: 'runbook/OncegateLatencyBurnsFast.md', details: 'internals' },
    }),
    stat({
      title: 'Keys in doubt now',
      description:
        'Keys whose payout may or may not have been made, and executions whose gateway has died, as counted in the store. Their ' +
        'merchants get 409 until someone resolves them. "no data": no gateway has counted them for five minutes, so the number is ' +
        "not known. Do: find each payout in the backend's books and resolve its key; without data, bring the store back.",
      unit: units.Short,
      queries: [
        {
          expr: `sum by (job, store) (${ofTheStore('oncegate_keys_in_doubt', GATEWAYS, 'operation')})`,
          legend: '{{job}} {{store}}',
        },
      ],
      thresholds: { red: 1 },
      ...{ size: [4, 5], runbook: 'runbook/resolve-a-key-in-doubt.md' },
    }),
    stat({
      title: 'Oldest key in doubt',
      description:
        'For how long the oldest of these keys has been in doubt; 0 if there is none, and "no data" if nobody has counted them for ' +
        'five minutes. Do: resolve the oldest first. A key that stays in doubt for `idempotency.inDoubtRetentionMs`, 30 days by ' +
        'default, is new after that, and a retry would be executed.',
      unit: units.Seconds,
      queries: [{ expr: ofTheStore('oncegate_oldest_in_doubt_seconds'), legend: '{{job}} {{store}}' }],
      thresholds: { yellow: 1, red: 3600 },
      ...{ size: [4, 5], details: 'internals', runbook: 'runbook/OncegateInDoubtOld.md' },
    }),
    stat({
      title: 'Gateways',
      description:
        'Gateways that Prometheus reaches, and those that it does not: their process is down, cannot be reached, or refuses the ' +
        "admin token. Do: look at the instance's `/healthz` and `/readyz`, which names the check that fails, and at its log.",
      unit: units.Short,
      queries: [
        { expr: `sum(up{${GATEWAYS}})`, legend: 'up' },
        { expr: `count(up{${GATEWAYS}}) - sum(up{${GATEWAYS}})`, legend: 'down' },
      ],
      own: {
        up: { ground: 'red', thresholds: { green: 1 } },
        down: { ground: 'green', thresholds: { red: 1 } },
      },
      ...{ size: [4, 5], details: 'internals', runbook: 'runbook/OncegateGatewayDown.md' },
    }),
    states({
      title: 'Alerts',
      description:
        'Alerts of severity critical and warning that fire, or have fired in this time; "none" while there are none, and if ' +
        'Prometheus has not loaded config/prometheus.rules.yaml. Do: open the page of the runbook with the name of the ' +
        'alert; begin with the one that fired first.',
      unit: units.Short,
      queries: [{ expr: orZero(`max by (alertname) (${FIRING})`, 'alertname'), legend: '{{alertname}}' }],
      ...{ good: 'quiet', bad: 'fires', goodIs: 0 },
      ...{ size: [4, 5], runbook: 'runbook/README.md' },
    }),
  ],
};

const merchants: Row = {
  title: 'What merchants get',
  panels: [
    series({
      title: 'Requests by outcome',
      onlyEvents: true,
      description:
        'How requests ended. "executed", "replayed", "forwarded", "passed_through" and "released" are responses of the backend; ' +
        'every other word is the code of an answer of the gateway: docs/merchants.md says what a merchant does about it. Red: ' +
        'outcome_unknown (see "In doubt by cause") and internal_error (a defect of the gateway). Many invalid_key after a key ' +
        'rotation are a merchant with the old key. Do: click a line to see its log lines; report each internal_error with its own.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('outcome', requests, GATEWAYS), legend: '{{outcome}}' }],
      stacked: true,
      colors: { executed: 'green', replayed: 'blue', outcome_unknown: 'red', internal_error: 'red' },
      dataLinks: [logsOfOutcome],
      size: [12, 9],
    }),
    series({
      title: 'Requests by operation',
      onlyEvents: true,
      description:
        'What merchants call. "none": requests that were refused before they were matched. "other": a declared path, but none ' +
        'of its operations, or unclear which. "undeclared": every other path. If a payout operation falls to 0 while one of ' +
        'these rises, merchants call something that the configuration does not declare. Do: declare it under `operations`.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('operation', requests, GATEWAYS), legend: '{{operation}}' }],
      stacked: true,
      dataLinks: [logsOfOperation],
      size: [12, 9],
    }),
    series({
      title: 'Availability',
      description:
        'Over five minutes. with a result: the share of requests for which merchants got a result, whoever failed the others. ' +
        'gateway alone: the share that the gateway itself did not fail, with its objective; below it the budget of failures ' +
        'burns. Do: the next two panels say why.',
      unit: units.PercentUnit,
      queries: [
        { expr: results('5m'), legend: 'with a result' },
        { expr: availability('5m'), legend: 'gateway alone' },
        { expr: `${OBJECTIVES.available} + 0 * max(oncegate_build_info{${GATEWAYS}})`, legend: 'objective' },
      ],
      colors: { objective: 'red' },
      ...{ softMin: 0.99, max: 1, size: [8, 8], runbook: 'runbook/OncegateResultsBurnFast.md' },
    }),
    series({
      title: 'Share of requests that were not served',
      description:
        'Why. store_unavailable: see "Store takes writes". upstream_unreachable: the backend does not accept connections. ' +
        'overloaded: no slot became free in time, see "Slots in use", or `limits.inFlight` is reached. shutting_down: normal ' +
        'for seconds during a deployment. These four sent nothing, and the merchant may retry. outcome_unknown: see "In doubt ' +
        'by cause". Do: follow the name.',
      unit: units.PercentUnit,
      queries: [{ expr: notServed, legend: '{{outcome}}' }],
      thresholds: { yellow: 0.001, red: 0.01 },
      dataLinks: [logsOfOutcome],
      ...{ size: [8, 8], details: 'internals', runbook: 'runbook/OncegateResultsBurnFast.md' },
    }),
    series({
      title: 'Answers of the backend',
      onlyEvents: true,
      description:
        'What came of the requests that had their turn, by the class of the status; replays and retries of keys in doubt are ' +
        'not among them. 5xx: results, which retries get again. unknown: no complete response, or one of the `unknown` statuses ' +
        'of the operation: the key is in doubt. not_sent: no connection; nothing was sent. Do: for 5xx tell the owners of the ' +
        'backend; for unknown see "In doubt by cause".',
      unit: units.RequestsPerSecond,
      queries: [
        { expr: rateBy('class', 'oncegate_upstream_responses_total', OPERATIONS), legend: '{{class}}' },
      ],
      stacked: true,
      colors: { '2xx': 'green', '5xx': 'red', unknown: 'orange' },
      ...{ size: [8, 8], runbook: 'runbook/OncegateUpstreamErrors.md' },
    }),
    series({
      title: 'Requests by merchant',
      description:
        'Requests of the merchants that `metrics.merchants` names; other: all others together. A line that falls to 0 is a ' +
        'merchant who cannot reach the gateway, or has stopped. Do: look for its refusals in "Requests by outcome", then ask ' +
        'the merchant.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('merchant', merchantRequests, MERCHANTS), legend: '{{merchant}}' }],
      stacked: true,
      dataLinks: [logsOfMerchant],
      size: [8, 8],
    }),
    series({
      title: 'Share not served, by merchant',
      description:
        "The share of a merchant's requests that the gateway or the backend failed, or whose outcome is unknown. One line above " +
        'the others: look at what that merchant calls. All lines: it is the gateway, the store or the backend. Do: "Share of ' +
        'requests that were not served" says which.',
      unit: units.PercentUnit,
      queries: [
        {
          expr: orZero(
            `${rateBy('merchant', merchantRequests, `${MERCHANTS}, outcome=~"${NOT_SERVED}"`)} / ` +
              `(${rateBy('merchant', merchantRequests, MERCHANTS)} > 0)`,
            'merchant',
          ),
          legend: '{{merchant}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.001, red: 0.01 } },
      dataLinks: [logsOfMerchant],
      ...{ size: [8, 8], runbook: 'runbook/OncegateAvailabilityBurnsFast.md' },
    }),
    series({
      title: 'Replays and refusals, by merchant',
      onlyEvents: true,
      description:
        'Retries that got the stored result: many mean that the merchant does not get the first answers, so compare its time ' +
        'limit with "Latency by merchant, p95". rate_limited: it sends more than `limits.perMerchant` allows. ' +
        'idempotency_key_reused: one key for different requests, a mistake in its client. Do: tell the merchant.',
      unit: units.RequestsPerSecond,
      queries: [
        {
          expr: rateBy(
            'merchant, outcome',
            merchantRequests,
            `${MERCHANTS}, outcome=~"replayed|rate_limited|idempotency_key_reused"`,
          ),
          legend: '{{merchant}}: {{outcome}}',
        },
      ],
      dataLinks: [logsOfMerchant],
      size: [8, 8],
    }),
  ],
};

const doubts: Row = {
  title: 'Keys in doubt',
  panels: [
    series({
      title: 'Keys in doubt by operation',
      description:
        'As counted in the store, once however many gateways there are; owner gone: those among them that a gateway was executing ' +
        'when it died or was cut off. A gap: no gateway could count them. A step up is an incident: a gateway that died, or a ' +
        'backend that broke connections. It falls only when keys are resolved. Do: list them with `oncegate records list --in-doubt` and resolve them.',
      unit: units.Short,
      queries: [
        {
          expr: ofTheStore('oncegate_keys_in_doubt', OPERATIONS, 'operation'),
          legend: '{{job}} {{store}} {{operation}}',
        },
        {
          expr: ofTheStore('oncegate_keys_owner_gone', OPERATIONS, 'operation'),
          legend: '{{job}} {{store}} {{operation}}: owner gone',
        },
      ],
      thresholds: { red: 1 },
      ...{ size: [8, 8], details: 'internals', runbook: 'runbook/resolve-a-key-in-doubt.md' },
    }),
    series({
      title: 'In doubt by cause',
      onlyEvents: true,
      description:
        'Events in each step. timeout: no complete response came within `upstream.responseTimeoutMs`. connection: the ' +
        'connection broke, or the response was not valid HTTP. status: the backend answered with one of the `unknown` statuses ' +
        'of the operation, because a proxy in front of it gave up. A burst of connection during a backend deployment means that ' +
        "the backend does not drain; a few now and then mean that the backend's keep-alive is shorter than " +
        "`upstream.keepAliveMs`. Do: find each payout in the backend's books and resolve its key.",
      unit: units.Short,
      queries: [
        { expr: increaseBy('operation, cause', inDoubt, OPERATIONS), legend: '{{operation}}: {{cause}}' },
      ],
      thresholds: { red: 0.5 },
      dataLinks: [toLogs('Log lines', 'msg=`the outcome of an execution is unknown`')],
      ...{ size: [8, 8], runbook: 'runbook/OncegateInDoubt.md' },
    }),
    stat({
      title: 'In doubt by merchant, last 24 h',
      description:
        'Executions whose outcome is unknown, by merchant. It counts what came into doubt, and not what is in doubt now. Do: ' +
        "find each payout in the backend's books and resolve its key; then tell the merchant to retry.",
      unit: units.Short,
      queries: [
        {
          expr: `sum by (merchant) (increase(oncegate_merchant_in_doubt_total{${MERCHANTS}}[24h]))`,
          legend: '{{merchant}}',
        },
      ],
      thresholds: { red: 0.5 },
      ...{ size: [8, 8], runbook: 'runbook/OncegateInDoubt.md' },
    }),
  ],
};

const latency: Row = {
  title: 'Latency',
  panels: [
    series({
      title: 'Latency of requests',
      description:
        "From the arrival of a request's head until its whole answer was sent. Requests that are passed through are left out: " +
        'streams and WebSockets have no usual length. Clients that wait 1 s, 2 s and 4 s between their retries give up after 7 ' +
        's. Do: the next two panels show whether the gateway or the backend is slow; if neither is, duplicates wait for first ' +
        'requests, or merchants read slowly.',
      unit: units.Seconds,
      queries: quantiles('oncegate_request_duration_seconds', `${OPERATIONS}, operation!="undeclared"`),
      thresholds: { yellow: 2.5, red: 7 },
      size: [6, 8],
    }),
    series({
      title: "The gateway's own part",
      description:
        'Without the backend, and without waiting for another request: store, authentication, the queue for a slot, and the ' +
        'merchant\'s sending and reading. Do: if "Store latency" rises too, the store is slow; if "Queued for a slot" does, see ' +
        'there; if "Event-loop lag" does, add gateways; if none of them, merchants send slowly.',
      unit: units.Seconds,
      queries: quantiles('oncegate_gateway_duration_seconds', OPERATIONS),
      thresholds: { yellow: OBJECTIVES.addedSeconds, red: 0.25 },
      ...{ size: [6, 8], details: 'internals', runbook: 'runbook/OncegateLatencyBurnsFast.md' },
    }),
    series({
      title: 'The backend by operation, p95',
      description:
        'From sending to the complete response, or to its failure, without the wait for a slot. If one line is above the others, ' +
        'that operation is slow; if all rise together, the backend, the network or a database is. After ' +
        '`upstream.responseTimeoutMs` the key of a payout is in doubt. Do: tell the owners of the backend; see "Slots in use" ' +
        'for whether slow responses use up the connections.',
      unit: units.Seconds,
      queries: [
        {
          expr: quantile(0.95, 'oncegate_upstream_duration_seconds', OPERATIONS, 'operation'),
          legend: '{{operation}}',
          exemplars: true,
        },
      ],
      thresholds: { yellow: 2.5, red: 5 },
      ...{ size: [6, 8], details: 'internals', runbook: 'runbook/OncegateUpstreamSlow.md' },
    }),
    series({
      title: 'Latency by merchant, p95',
      description:
        "From the arrival of a request's head until its whole answer was sent, the backend included. One line above the others: " +
        'that merchant calls a slow operation, sends slowly, or waits for its own first requests. Do: compare with "Latency of ' +
        'requests".',
      unit: units.Seconds,
      queries: [
        {
          expr: quantile(0.95, 'oncegate_merchant_request_duration_seconds', MERCHANTS, 'merchant'),
          legend: '{{merchant}}',
        },
      ],
      thresholds: { yellow: 2.5, red: 7 },
      dataLinks: [logsOfMerchant],
      ...{ size: [6, 8], runbook: 'runbook/OncegateUpstreamSlow.md' },
    }),
  ],
};

export const overview: PageOptions = {
  page: 'overview',
  title: 'Overview',
  description:
    'What merchants get, keys in doubt, and latency. The parts below are on Internals, one click away.',
  choices: [
    { name: 'operation', label: 'Operation', metric: 'oncegate_idempotency_hits_total' },
    { name: 'merchant', label: 'Merchant', metric: merchantRequests },
  ],
  rows: [wellBeing, merchants, doubts, latency],
};
