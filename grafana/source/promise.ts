import type { Row } from './model.ts';
import { GATEWAYS, lastDay, OPERATIONS, stat } from './panels.ts';

/** The first thing that whoever is on call wants to know. Each of these is nought on a good day. */
export const promise: Row = {
  title: 'Is the promise kept?',
  panels: [
    {
      ...{ width: 6, height: 5 },
      panel: stat({
        title: 'In doubt, last 24 h',
        description:
          'Executions that were sent and whose outcome is not known, and retries that were told so. Each is held: no ' +
          'retry is sent again. A key that a gateway left behind when it died shows among the retries only. Do: find ' +
          'the log line "the outcome of an execution is unknown", look the payout up in the backend, and tell the ' +
          'merchant. Within 24 h of the first request, for then the key is new again.',
        unit: 'short',
        queries: [
          { expr: lastDay('oncegate_in_doubt_total', OPERATIONS), legend: 'executions' },
          {
            expr: lastDay('oncegate_idempotency_conflicts_total', `${OPERATIONS}, kind="in_doubt"`),
            legend: 'retries told so',
          },
        ],
        thresholds: { red: 0.5 },
      }),
    },
    {
      ...{ width: 6, height: 5 },
      panel: stat({
        title: 'Settled late, last 24 h',
        description:
          'Merchants who were answered before the store had taken the result. The gateway goes on storing it, in ' +
          'memory only: if it ends before the store answers, a retry finds the key in doubt. Do: bring the store back, ' +
          'and do not restart the gateway before.',
        unit: 'short',
        queries: [
          { expr: lastDay('oncegate_settle_late_total', OPERATIONS), legend: 'settled late' },
          { expr: `sum(oncegate_pending_writes{${GATEWAYS}})`, legend: 'not written yet, now' },
        ],
        thresholds: { red: 0.5 },
      }),
    },
    {
      ...{ width: 6, height: 5 },
      panel: stat({
        title: 'Stale writes, last 24 h',
        description:
          'Writes of an owner whose claim was no longer there: fencing has worked. At begin it is harmless, nothing ' +
          'was sent. At settle a result was not stored: the record was deleted, evicted or lost in a failover. Do: see ' +
          '"Fencing" below for which write it was; for settle look at the store\'s memory policy, persistence and failovers.',
        unit: 'short',
        queries: [{ expr: lastDay('oncegate_stale_total', GATEWAYS), legend: 'refused' }],
        thresholds: { orange: 0.5 },
      }),
    },
    {
      ...{ width: 6, height: 5 },
      panel: stat({
        title: 'Leases lost, last 24 h',
        description:
          'Leases that lapsed while their owner lived: the process stood still, or the store did, for longer than ' +
          '`lock.leaseMs`. Nothing was executed twice for it, but a retry in that time was told "in doubt". Do: look at ' +
          'event-loop lag, CPU limits and store latency; raise `lock.leaseMs` if pauses of that length are normal.',
        unit: 'short',
        queries: [{ expr: lastDay('oncegate_lease_lost_total', GATEWAYS), legend: 'lost' }],
        thresholds: { orange: 0.5 },
      }),
    },
    {
      ...{ width: 6, height: 5 },
      panel: stat({
        title: 'Not replicated, last 24 h',
        description:
          'Results that the store had taken, but not as many replicas as `store.durability.replicas` asks for, in time. The ' +
          'merchants have their answers. If the primary is lost before they catch up, the key reads "in doubt" or is new. ' +
          'Do: look at the replicas: how many there are, and how far behind.',
        unit: 'short',
        queries: [
          { expr: lastDay('oncegate_settle_unreplicated_total', GATEWAYS), legend: 'not replicated' },
        ],
        thresholds: { orange: 0.5 },
      }),
    },
    {
      ...{ width: 6, height: 5 },
      panel: stat({
        title: 'Unprotected payouts, last 24 h',
        description:
          'Requests of an operation that takes an idempotency key, sent without one: a retry of these is a second ' +
          'payout. Do: find the merchants in the log (outcome "forwarded" without a scope) and ask them to send keys; then ' +
          'set `idempotency.key: required` for the operation.',
        unit: 'short',
        queries: [{ expr: lastDay('oncegate_unprotected_total', OPERATIONS), legend: 'without a key' }],
        thresholds: { yellow: 0.5 },
      }),
    },
    {
      ...{ width: 6, height: 5 },
      panel: stat({
        title: 'Response not stored, last 24 h',
        description:
          'Answers larger than `idempotency.maxStoredBytes`, and retries that got 409 `response_not_stored` for it. The ' +
          'payout is safe, its result cannot be got again. Do: raise `idempotency.maxStoredBytes` if such answers are ' +
          'normal. Answers of operations without a key are counted with them, and lose nothing.',
        unit: 'short',
        queries: [
          {
            expr: lastDay('oncegate_upstream_duration_seconds_count', `${OPERATIONS}, result="oversize"`),
            legend: 'answers too large',
          },
          {
            expr: lastDay('oncegate_idempotency_conflicts_total', `${OPERATIONS}, kind="not_stored"`),
            legend: 'retries told so',
          },
        ],
        thresholds: { yellow: 0.5 },
      }),
    },
    {
      ...{ width: 6, height: 5 },
      panel: stat({
        title: 'Resolved, last 24 h',
        description:
          'Keys in doubt that somebody has resolved: a person on the admin port, or the gateway by asking the backend. ' +
          'What the command line resolves is in the audit trail alone, see `oncegate records show`. Do: a key that was ' +
          'released is executed again by its next retry; look that each had a good reason.',
        unit: 'short',
        queries: [
          { expr: lastDay('oncegate_resolutions_total', `${GATEWAYS}, as="settled"`), legend: 'settled' },
          { expr: lastDay('oncegate_resolutions_total', `${GATEWAYS}, as="released"`), legend: 'released' },
        ],
      }),
    },
  ],
};
