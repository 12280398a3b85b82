import type { Row } from '../dashboard.ts';
import { stat, units } from '../panels.ts';
import { GATEWAYS, lastDay, OPERATIONS, ofTheStore } from '../queries.ts';

/** Each number is 0 on a good day. */
export const promise: Row = {
  title: 'Is the promise kept?',
  panels: [
    stat({
      title: 'In doubt now',
      description:
        'Keys whose payout may or may not have been made, and those of them whose gateway died or was cut off while it executed ' +
        "them (owner gone), as counted in the store. Do: find each payout in the backend's books, and resolve the key with " +
        '`oncegate records resolve`. The key stays in doubt for `idempotency.inDoubtRetentionMs`, 30 days by default.',
      unit: units.Short,
      queries: [
        {
          expr: `sum by (job) (${ofTheStore('oncegate_keys_in_doubt', 'job, operation')})`,
          legend: '{{job}} in doubt',
        },
        {
          expr: `sum by (job) (${ofTheStore('oncegate_keys_owner_gone', 'job, operation')})`,
          legend: '{{job}} owner gone',
        },
      ],
      thresholds: { red: 1 },
      ...{ size: [6, 5], runbook: 'resolve-a-key-in-doubt' },
    }),
    stat({
      title: 'Came into doubt, last 24 h',
      description:
        'Executions whose outcome is unknown, and retries that got 409 `outcome_unknown`. Only with `idempotency.inDoubt: ' +
        'retry` does the gateway send a retry while its key is in doubt. The keys of a gateway that died are not among the ' +
        'executions: see "In doubt now". Do: the log line "the outcome of an execution is unknown" has merchant, operation and ' +
        'reason.',
      unit: units.Short,
      queries: [
        { expr: lastDay('oncegate_in_doubt_total', OPERATIONS), legend: 'executions' },
        {
          expr: lastDay('oncegate_idempotency_conflicts_total', `${OPERATIONS}, kind="in_doubt"`),
          legend: 'retries refused',
        },
      ],
      thresholds: { red: 0.5 },
      ...{ size: [6, 5], runbook: 'oncegateindoubt' },
    }),
    stat({
      title: 'Completed late, last 24 h',
      description:
        'Responses that were sent before the store had taken them. Only the memory of the gateway has them, and the gateway repeats ' +
        'the writes: if it is killed before the store answers, the keys are in doubt. Do: bring the store back, and do not ' +
        'restart the gateway before that.',
      unit: units.Short,
      queries: [
        { expr: lastDay('oncegate_complete_late_total', OPERATIONS), legend: 'completed late' },
        { expr: `sum(oncegate_pending_writes{${GATEWAYS}})`, legend: 'pending writes, now' },
      ],
      thresholds: { red: 0.5 },
      ...{ size: [6, 5], runbook: 'oncegatecompletelate' },
    }),
    stat({
      title: 'Stale writes, last 24 h',
      description:
        'Writes that the store refused because another execution owns the record: fencing has worked. For complete, a response ' +
        'was not stored: an operator or a lookup had resolved the key, or a retry had been sent, while the first request still ' +
        'ran. Do: see "Stale writes by kind" for which write it was; for complete find the log line "a late response was not ' +
        'stored: the key has another result", and compare with the backend\'s books.',
      unit: units.Short,
      queries: [{ expr: lastDay('oncegate_stale_total', GATEWAYS), legend: 'refused' }],
      thresholds: { orange: 0.5 },
      ...{ size: [6, 5], runbook: 'oncegatestalewrites' },
    }),
    stat({
      title: 'Leases lost, last 24 h',
      description:
        'Leases that lapsed while their owner was alive: the process or the store was paused for longer than `lock.leaseMs`. ' +
        'Nothing was executed twice because of it, but a retry in that time got 409 `outcome_unknown`. Do: look at event-loop ' +
        'lag, CPU limits and store latency; raise `lock.leaseMs` if pauses of that length are normal.',
      unit: units.Short,
      queries: [{ expr: lastDay('oncegate_lease_lost_total', GATEWAYS), legend: 'lost' }],
      thresholds: { orange: 0.5 },
      ...{ size: [6, 5], runbook: 'oncegateleaselost', details: 'runtime' },
    }),
    stat({
      title: 'Not replicated, last 24 h',
      description:
        'Attempts to store a response that did not reach `store.durability.replicas` replicas in time. The gateway repeats ' +
        'them until it does. If the master is lost before that, the key is in doubt until the write has succeeded. Do: look at ' +
        'the replicas: how many are connected, and how far behind they are.',
      unit: units.Short,
      queries: [
        { expr: lastDay('oncegate_complete_unreplicated_total', GATEWAYS), legend: 'not replicated' },
      ],
      thresholds: { orange: 0.5 },
      ...{ size: [6, 5], runbook: 'oncegatecompleteunreplicated' },
    }),
    stat({
      title: 'Unprotected payouts, last 24 h',
      description:
        'Requests without an idempotency key, of operations that take one: a retry of such a request is a second ' +
        'payout. Do: find the merchants in the log (outcome "forwarded" without a scope) and ask them to send keys; then ' +
        'set `idempotency.key: required` for the operation.',
      unit: units.Short,
      queries: [{ expr: lastDay('oncegate_unprotected_total', OPERATIONS), legend: 'without a key' }],
      thresholds: { yellow: 0.5 },
      ...{ size: [6, 5], runbook: 'oncegateunprotectedpayouts' },
    }),
    stat({
      title: 'Response not stored, last 24 h',
      description:
        'Responses larger than `idempotency.maxStoredBytes`, and retries that got 409 `response_not_stored` for that reason. The ' +
        'payout is safe, but its response cannot be replayed. Do: raise `idempotency.maxStoredBytes` if such responses are ' +
        'normal. Responses of operations without a key are counted too, and lose nothing.',
      unit: units.Short,
      queries: [
        {
          expr: lastDay('oncegate_upstream_duration_seconds_count', `${OPERATIONS}, result="oversize"`),
          legend: 'responses too large',
        },
        {
          expr: lastDay('oncegate_idempotency_conflicts_total', `${OPERATIONS}, kind="not_stored"`),
          legend: 'retries refused',
        },
      ],
      thresholds: { yellow: 0.5 },
      size: [6, 5],
    }),
  ],
};
