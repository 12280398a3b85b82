import type { Row } from '../dashboard.ts';
import { labelOf, toLogs } from '../links.ts';
import { series, states, units } from '../panels.ts';
import { GATEWAYS, increaseBy, increaseOf, OPERATIONS } from '../queries.ts';

/** Writes that were late, refused, or cannot be read back. */
export const writes: Row = {
  title: 'Late and refused writes',
  panels: [
    series({
      title: 'Stale writes by kind',
      description:
        'Events in each step: writes that the store refused because another execution owns the record. complete is the serious ' +
        'one: a response was not stored. Do: look for pauses of the process or of the store at that time.',
      unit: units.Short,
      queries: [{ expr: increaseBy('write', 'oncegate_stale_total', GATEWAYS), legend: '{{write}}' }],
      colors: { complete: 'red' },
      dataLinks: [toLogs('Log lines', `write=\`${labelOf('write')}\``)],
      ...{ size: [8, 8], runbook: 'oncegatestalewrites' },
    }),
    series({
      title: 'Leases lost',
      description:
        'Events in each step: leases that lapsed while their owner was alive. The process or the store was paused for longer ' +
        'than `lock.leaseMs`. Do: look at the event-loop lag and the latency of the store at that time.',
      unit: units.Short,
      queries: [
        {
          expr: `sum by (instance) (increase(oncegate_lease_lost_total{${GATEWAYS}}[$__rate_interval]))`,
          legend: '{{instance}}',
        },
      ],
      thresholds: { orange: 0.5 },
      dataLinks: [toLogs('Log lines', 'msg=`a lease lapsed while its owner was alive`')],
      ...{ size: [8, 8], runbook: 'oncegateleaselost', details: 'runtime' },
    }),
    series({
      title: 'Late, pending and unreplicated results',
      description:
        'Events in each step: responses that were sent before they were stored, and attempts to store that did not reach the ' +
        'replicas. pending: writes that are repeated now, because the store has not answered. Do: bring the store back, and do ' +
        'not restart a gateway while writes are pending.',
      unit: units.Short,
      queries: [
        {
          expr: increaseBy('operation', 'oncegate_complete_late_total', OPERATIONS),
          legend: 'late: {{operation}}',
        },
        { expr: increaseOf('oncegate_complete_unreplicated_total', GATEWAYS), legend: 'not replicated' },
        { expr: `sum by (instance) (oncegate_pending_writes{${GATEWAYS}})`, legend: 'pending: {{instance}}' },
      ],
      thresholds: { red: 0.5 },
      ...{ size: [8, 8], runbook: 'oncegatecompletelate' },
    }),
    series({
      title: 'Unreadable records',
      description:
        'Events in each step: commands that failed because a record cannot be read, so its key gets 503. unknown_key: this ' +
        'gateway does not have the encryption key. not_authentic: the key has another secret here, or the record was changed. ' +
        'damaged: the record is broken. Do: the log line "a record cannot be read" has the scope and why.',
      unit: units.Short,
      queries: [
        { expr: increaseBy('reason', 'oncegate_unreadable_records_total', GATEWAYS), legend: '{{reason}}' },
      ],
      thresholds: { red: 0.5 },
      dataLinks: [toLogs('Log lines', 'msg=`a record cannot be read`')],
      ...{ size: [24, 6], runbook: 'oncegateunreadablerecords' },
    }),
  ],
};

export const observeMode: Row = {
  title: 'Observe mode',
  panels: [
    states({
      title: 'Gateways that only observe',
      description:
        'Whether a gateway has `idempotency.mode: observe`. Red: it sends every request to the backend, duplicates included, and ' +
        'protects nothing. Do: if the trial is over, set `idempotency.mode: protect` and restart the gateway.',
      unit: units.Short,
      queries: [{ expr: `max by (instance) (oncegate_observing{${GATEWAYS}})`, legend: '{{instance}}' }],
      ...{ good: 'protects', bad: 'observes', goodIs: 0 },
      ...{ size: [8, 8], runbook: 'oncegateobserving' },
    }),
    series({
      title: 'What a gateway that observes would have done',
      onlyEvents: true,
      description:
        'Requests with a key under `idempotency.mode: observe`, in each step. All of them were sent. executed: so they would ' +
        'have been. replayed, waited, mismatch, in_doubt: duplicates that would have been stopped, each of them perhaps a ' +
        'second payout. invalid_key, key_required, body_too_large: requests that would have been refused. not observed: the ' +
        'store did not answer. Do: look up the merchants in the log, by the field `would`, before you set `idempotency.mode: ' +
        'protect`.',
      unit: units.Short,
      queries: [
        { expr: increaseBy('would', 'oncegate_observed_total', OPERATIONS), legend: '{{would}}' },
        { expr: increaseOf('oncegate_unobserved_total', OPERATIONS), legend: 'not observed' },
      ],
      colors: { replayed: 'red', waited: 'red', 'not observed': 'orange' },
      dataLinks: [toLogs('Log lines', `would=\`${labelOf('would')}\``)],
      ...{ size: [16, 8], runbook: 'oncegateobserving' },
    }),
  ],
};
