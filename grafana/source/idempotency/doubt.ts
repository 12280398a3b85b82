import type { Row } from '../dashboard.ts';
import { labelOf, toLogs } from '../links.ts';
import { series, stat, units } from '../panels.ts';
import { GATEWAYS, increaseBy, OPERATIONS, ofTheStore } from '../queries.ts';

export const doubt: Row = {
  title: 'Keys in doubt',
  panels: [
    series({
      title: 'Keys in doubt by operation',
      description:
        'As counted in the store, once however many gateways there are. owner gone: executions without a living owner, which ' +
        'are in doubt too. A step up is a gateway that died or a backend that broke connections. It falls only when keys are ' +
        'resolved. Do: list them with `oncegate records list --in-doubt`.',
      unit: units.Short,
      queries: [
        {
          expr: `max by (job, operation) (oncegate_keys_in_doubt{${OPERATIONS}})`,
          legend: '{{job}} {{operation}}',
        },
        {
          expr: `max by (job, operation) (oncegate_keys_owner_gone{${OPERATIONS}})`,
          legend: '{{job}} {{operation}}: owner gone',
        },
      ],
      thresholds: { red: 1 },
      ...{ size: [8, 8], runbook: 'resolve-a-key-in-doubt' },
    }),
    series({
      title: 'Age of the oldest',
      description:
        'For how long the oldest key in doubt has been so. A line that climbs for hours means that nobody resolves it: its ' +
        'merchant waits for an answer. Do: resolve it, or find out who can read the books of the backend.',
      unit: units.Seconds,
      queries: [
        { expr: ofTheStore('oncegate_oldest_in_doubt_seconds'), legend: '{{job}}' },
        {
          expr: `min by (job) (oncegate_in_doubt_page_after_seconds{${GATEWAYS}})`,
          legend: '{{job}}: pages somebody from here on',
        },
      ],
      thresholds: { yellow: 900, red: 3600 },
      ...{ size: [8, 8], runbook: 'oncegateindoubtold' },
    }),
    series({
      title: 'Age of the count',
      description:
        'For how long no gateway has counted the keys in doubt. The numbers above are as old as this. More than a few minutes: ' +
        'the store does not answer. Do: look at the store; `oncegate records list --in-doubt` counts at once. Before the first ' +
        'count this is the time since 1970.',
      unit: units.Seconds,
      queries: [
        { expr: `time() - ${ofTheStore('oncegate_doubts_counted_timestamp_seconds')}`, legend: '{{job}}' },
      ],
      thresholds: { yellow: 120, red: 600 },
      ...{ size: [8, 8], runbook: 'oncegatedoubtsnotcounted', details: 'runtime' },
    }),
    series({
      title: 'In doubt by cause',
      onlyEvents: true,
      description:
        'Events in each step. timeout: no complete response came within `upstream.responseTimeoutMs`. connection: the ' +
        'connection broke, or the response was not valid HTTP. status: the backend answered with one of the `unknown` statuses ' +
        'of the operation (502 and 504 by default), because a proxy in front of it gave up. A burst of connection during a ' +
        "backend deployment means that the backend does not drain; a few now and then mean that the backend's keep-alive is " +
        "shorter than `upstream.keepAliveMs`. Do: find each payout in the backend's books and resolve its key.",
      unit: units.Short,
      queries: [
        {
          expr: increaseBy('operation, cause', 'oncegate_in_doubt_total', OPERATIONS),
          legend: '{{operation}}: {{cause}}',
        },
      ],
      thresholds: { red: 0.5 },
      dataLinks: [
        toLogs(
          'Log lines',
          `operation=\`${labelOf('operation')}\` | msg=\`the outcome of an execution is unknown\``,
        ),
      ],
      ...{ size: [12, 8], runbook: 'oncegateindoubt' },
    }),
    series({
      title: 'Resolutions',
      onlyEvents: true,
      description:
        'Keys in doubt that were resolved, in each step: as completed or released, by an operator on the admin port, a lookup, ' +
        'or the command line. Each has its audit record, see `oncegate records show`. Do: the next retry of a released key is ' +
        'executed; check that each release had a good reason.',
      unit: units.Short,
      queries: [
        {
          expr: `max by (job, as, by) (increase(oncegate_resolutions_total{${GATEWAYS}}[$__rate_interval]))`,
          legend: '{{job}} {{as}} by {{by}}',
        },
      ],
      dataLinks: [toLogs('Log lines', 'msg=`a key in doubt was resolved`')],
      ...{ size: [12, 8], runbook: 'resolve-a-key-in-doubt' },
    }),
    stat({
      title: 'Resolved, last 24 h',
      description:
        'Keys in doubt that were resolved, in the whole store. Do: the next retry of a released key is executed; check ' +
        'that each release had a good reason, in the audit trail.',
      unit: units.Short,
      queries: ['completed', 'released'].map((as) => ({
        expr: `sum(max by (job, by) (increase(oncegate_resolutions_total{${GATEWAYS}, as="${as}"}[24h])))`,
        legend: as,
      })),
      ground: 'blue',
      ...{ size: [6, 8], runbook: 'resolve-a-key-in-doubt' },
    }),
    series({
      title: 'Lookups by result',
      onlyEvents: true,
      description:
        'Events in each step, of operations with `idempotency.inDoubt: lookup`. completed and released: the key is no longer in ' +
        'doubt. unknown: the answer did not decide it, or "no such transaction" came too early to be believed. failed: there was ' +
        'no complete answer. Do: if unknown and failed continue, find the log line "a lookup did not decide a key in doubt"; ' +
        'a 401 there means that the credential of the lookup is wrong.',
      unit: units.Short,
      queries: [
        {
          expr: increaseBy('operation, result', 'oncegate_lookups_total', OPERATIONS),
          legend: '{{operation}}: {{result}}',
        },
      ],
      dataLinks: [toLogs('Log lines', 'msg=`a lookup did not decide a key in doubt`')],
      ...{ size: [9, 8], runbook: 'oncegatelookupsfail' },
    }),
    series({
      title: 'Sent again while in doubt',
      description:
        'Events in each step, of operations with `idempotency.inDoubt: retry`: requests that may have been executed and were ' +
        'sent again. Only a backend that itself executes each key once pays once. Do: compare with the ' +
        "backend's books, and choose another policy if you find two payouts.",
      unit: units.Short,
      queries: [
        { expr: increaseBy('operation', 'oncegate_sent_again_total', OPERATIONS), legend: '{{operation}}' },
      ],
      size: [9, 8],
    }),
  ],
};
