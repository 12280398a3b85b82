import { FIRING, type Row } from '../dashboard.ts';
import { series, states, units } from '../panels.ts';
import { GATEWAYS, ofTheStore, orZero, quantile } from '../queries.ts';
import { gatewaysUp } from '../runtime/gateways.ts';
import { storeTakesWrites } from '../runtime/store.ts';
import { added } from './availability.ts';

/** The share of what was sent to the backend, or could not be sent, that ended so. */
function shareOfSent(result: string): string {
  const sent = (more: string) =>
    `sum(rate(oncegate_upstream_duration_seconds_count{${GATEWAYS}${more}}[$__rate_interval]))`;
  return orZero(`${sent(`, result="${result}"`)} / (${sent('')} > 0)`);
}

/** The minute after that. */
export const parts: Row = {
  title: 'Which part is not?',
  panels: [
    storeTakesWrites({ size: [6, 7], details: 'runtime' }),
    series({
      title: 'Backend',
      description:
        'Requests to the backend that did not get a complete response, as a share. not_sent: no connection could be made, the ' +
        'keys are free. unknown: the connection broke or no answer came in time, and the keys are in doubt. Do: tell the owners ' +
        'of the backend.',
      unit: units.PercentUnit,
      queries: ['not_sent', 'unknown'].map((result) => ({ expr: shareOfSent(result), legend: result })),
      colors: { not_sent: 'orange', unknown: 'red' },
      max: 1,
      thresholds: { yellow: 0.01, red: 0.05 },
      ...{ size: [6, 7], details: 'runtime', runbook: 'oncegateupstreamunreachable' },
    }),
    gatewaysUp({ size: [6, 7], details: 'runtime' }),
    states({
      title: 'Alerts',
      description:
        'Alerts of severity critical and warning that fire, or have fired in this time; "none" while there are none. Do: open ' +
        'the runbook at the section with the name of the alert; begin with the one that fired first.',
      unit: units.Short,
      queries: [{ expr: orZero(`max by (alertname) (${FIRING})`, 'alertname'), legend: '{{alertname}}' }],
      ...{ good: 'quiet', bad: 'fires', goodIs: 0 },
      ...{ size: [6, 7], runbook: 'alerts' },
    }),
    series({
      title: 'Keys in doubt',
      description:
        'Keys in doubt by operation, as counted in the store; owner gone: those among them that a gateway was executing when it ' +
        'died or was cut off. A step up is an incident: a gateway that died, or a backend that broke connections. It falls only ' +
        'when keys are resolved. Do: list them with `oncegate records list --in-doubt` and resolve them.',
      unit: units.Short,
      queries: [
        { expr: ofTheStore('oncegate_keys_in_doubt', 'job, operation'), legend: '{{job}} {{operation}}' },
        {
          expr: `sum by (job) (${ofTheStore('oncegate_keys_owner_gone', 'job, operation')})`,
          legend: '{{job}} owner gone',
        },
      ],
      thresholds: { red: 1 },
      ...{ size: [8, 8], details: 'idempotency', runbook: 'resolve-a-key-in-doubt' },
    }),
    series({
      title: 'Latency',
      description:
        'What the gateway adds (p50 and p99), and what the backend needs (p95). Clients that wait 1 s, 2 s and 4 s between ' +
        'their retries give up after 7 s. Do: if the backend is slow, tell its owners; if the gateway is, see the store and the ' +
        'event loop in the details.',
      unit: units.Seconds,
      queries: [
        { expr: added(0.5), legend: 'gateway p50', exemplars: true },
        { expr: added(0.99), legend: 'gateway p99', exemplars: true },
        { expr: quantile(0.95, 'oncegate_upstream_duration_seconds', GATEWAYS), legend: 'backend p95' },
      ],
      thresholds: { yellow: 2.5, red: 7 },
      ...{ size: [8, 8], details: 'runtime', runbook: 'oncegatelatencyburnsfast' },
    }),
    states({
      title: 'Warnings of the gateways',
      description:
        'Red: `/readyz` warns of something that does not stop the gateway, but will harm it: a weak setting of the store, a ' +
        'certificate that ends, a refused file. Do: `/readyz` and the log line of the start say it in words.',
      unit: units.Short,
      queries: [
        {
          expr: `clamp_max(max by (about) (oncegate_config_warnings{${GATEWAYS}}), 1)`,
          legend: '{{about}}',
        },
      ],
      ...{ good: 'none', bad: 'warns', goodIs: 0 },
      ...{ size: [8, 8], details: 'runtime', runbook: 'oncegatestoreunsafe' },
    }),
  ],
};
