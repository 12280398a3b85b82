import { FIRING, type Row } from '../dashboard.ts';
import { stat, units } from '../panels.ts';
import { GATEWAYS, ofTheStore, orZero } from '../queries.ts';
import { added, availability, FAILED, FAILED_BEHIND, OBJECTIVES } from './availability.ts';

/** The look of ten seconds: every number is green on a good day. */
export const wellBeing: Row = {
  title: 'Are merchants well?',
  panels: [
    stat({
      title: 'Availability, last hour',
      description:
        'The share of requests that were served. gateway: without those that the gateway itself failed; the objective is 99.9 ' +
        '%. with the backend: also without those that the backend did not take, or whose outcome is unknown. Refusals that a ' +
        'merchant caused do not count. Do: "Share of requests that were not served" says why.',
      unit: units.PercentUnit,
      decimals: 2,
      queries: [
        { expr: availability('1h', FAILED), legend: 'gateway' },
        { expr: availability('1h', `${FAILED}|${FAILED_BEHIND}`), legend: 'with the backend' },
      ],
      ...{ ground: 'red', thresholds: { yellow: 0.995, green: OBJECTIVES.available } },
      ...{ size: [4, 5], runbook: 'oncegateavailabilityburnsfast' },
    }),
    stat({
      title: 'Added latency, p99',
      description:
        "What the gateway adds to a request, for all but the slowest hundredth: without the backend's time, and without waiting " +
        'for another request. At most 25 ms is the objective. Do: "Latency" below shows whether it is new; the details show ' +
        'whether it is the store, the queue for a slot or the event loop.',
      unit: units.Seconds,
      decimals: 3,
      queries: [
        {
          expr: orZero(`${added(0.99)} >= 0`),
          legend: 'added',
        },
      ],
      thresholds: { yellow: OBJECTIVES.addedSeconds, red: 0.25 },
      ...{ size: [4, 5], runbook: 'oncegatelatencyburnsfast', details: 'runtime' },
    }),
    stat({
      title: 'Keys in doubt now',
      description:
        'Keys whose payout may or may not have been made, and executions whose gateway has died, as counted in the store. Their ' +
        "merchants get 409 until someone resolves them. Do: find each payout in the backend's books and resolve its key.",
      unit: units.Short,
      queries: [
        {
          expr: `sum by (job) (${ofTheStore('oncegate_keys_in_doubt', 'job, operation')})`,
          legend: '{{job}}',
        },
      ],
      thresholds: { red: 1 },
      ...{ size: [4, 5], details: 'idempotency', runbook: 'resolve-a-key-in-doubt' },
    }),
    stat({
      title: 'Oldest key in doubt',
      description:
        'For how long the oldest of these keys has been in doubt; 0 if there is none. Do: resolve the oldest first. A key that ' +
        'stays in doubt for `idempotency.inDoubtRetentionMs`, 30 days by default, is new after that, and a retry would be ' +
        'executed.',
      unit: units.Seconds,
      queries: [{ expr: ofTheStore('oncegate_oldest_in_doubt_seconds'), legend: '{{job}}' }],
      thresholds: { yellow: 1, red: 3600 },
      ...{ size: [4, 5], details: 'idempotency', runbook: 'oncegateindoubtold' },
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
      ...{ size: [4, 5], details: 'runtime', runbook: 'oncegategatewaydown' },
    }),
    stat({
      title: 'Alerts that fire',
      description:
        'Alerts of severity critical and warning. Do: "Alerts" below names them, and each has its section in the runbook. It is ' +
        '0 too if Prometheus has not loaded config/prometheus.rules.yaml.',
      unit: units.Short,
      queries: [{ expr: orZero(`count(${FIRING})`), legend: 'firing' }],
      thresholds: { red: 1 },
      ...{ size: [4, 5], runbook: 'alerts' },
    }),
  ],
};
