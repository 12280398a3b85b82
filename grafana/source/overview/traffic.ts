import type { Row } from '../dashboard.ts';
import { labelOf, toLogs } from '../links.ts';
import { series, units } from '../panels.ts';
import { GATEWAYS, rateBy } from '../queries.ts';
import { availability, FAILED, FAILED_BEHIND, notServed, OBJECTIVES } from './availability.ts';

const requests = 'oncegate_requests_total';

export const traffic: Row = {
  title: 'Traffic',
  panels: [
    series({
      title: 'Requests by outcome',
      onlyEvents: true,
      description:
        'How requests ended. "executed", "replayed", "forwarded", "passed_through" and "released" are responses of the backend; ' +
        'every other word is the code of an answer of the gateway. Red lines need attention: outcome_unknown (see "In doubt by ' +
        'cause"; it includes responses with one of the `unknown` statuses), internal_error (a defect of the gateway). Do: click ' +
        'a line to see its log lines; report each internal_error with its own.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('outcome', requests, GATEWAYS), legend: '{{outcome}}' }],
      stacked: true,
      colors: { executed: 'green', replayed: 'blue', outcome_unknown: 'red', internal_error: 'red' },
      dataLinks: [toLogs('Log lines of this outcome', `outcome=\`${labelOf('outcome')}\``)],
      ...{ size: [12, 9], details: 'idempotency' },
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
      dataLinks: [toLogs('Log lines of this operation', `operation=\`${labelOf('operation')}\``)],
      ...{ size: [12, 9], details: 'merchants' },
    }),
    series({
      title: 'Availability',
      description:
        'The share of requests that were served, over five minutes, and the objective of the gateway. Below the objective the ' +
        'budget of failures burns. Do: the next panel says why.',
      unit: units.PercentUnit,
      queries: [
        { expr: availability('5m', FAILED), legend: 'gateway' },
        { expr: availability('5m', `${FAILED}|${FAILED_BEHIND}`), legend: 'with the backend' },
        { expr: `${OBJECTIVES.available} + 0 * max(oncegate_build_info{${GATEWAYS}})`, legend: 'objective' },
      ],
      colors: { objective: 'red' },
      ...{ softMin: 0.99, max: 1, size: [12, 8], runbook: 'oncegateavailabilityburnsfast' },
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
      dataLinks: [toLogs('Log lines of this outcome', `outcome=\`${labelOf('outcome')}\``)],
      ...{ size: [12, 8], runbook: 'oncegateavailabilityburnsfast' },
    }),
  ],
};
