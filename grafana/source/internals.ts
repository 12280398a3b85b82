import type { PageOptions, Row } from './dashboard.ts';
import { labelOf, toLogs } from './links.ts';
import { series, stat, states, units } from './panels.ts';
import {
  GATEWAYS,
  increaseBy,
  increaseOf,
  lastDay,
  ofTheStore,
  orZero,
  type Query,
  quantile,
  rateBy,
  rateOf,
  withStore,
} from './queries.ts';

const GIB = 1024 ** 3;
const MIB = 1024 ** 2;
const upstream = 'oncegate_upstream_duration_seconds';
const storeSeconds = 'oncegate_store_duration_seconds';
const handshakes = 'oncegate_tls_handshakes_failed_total';
const collections = 'nodejs_gc_duration_seconds_sum';
const commit = 'oncegate_sqlite_commit_duration_seconds';

/** Grafana wants milliseconds since 1970. Where nothing ends there is one line at 0, in 1970. */
const whenFirst = (metric: string, name: string): Query => ({
  expr: orZero(`min by (instance) (${metric}{${GATEWAYS}}) * 1000`, 'instance'),
  legend: `{{instance}}: ${name}`,
});

/** Writes that were late, refused, or cannot be read back. */
const writes: Row = {
  title: 'Late and refused writes',
  panels: [
    stat({
      title: 'What should not happen, last 24 h',
      description:
        'Every number is 0 on a good day. sent before stored: only the memory of the gateway has these responses until the store ' +
        'answers. not replicated: they did not reach `store.durability.replicas` replicas in time. stale, lease lost: a gateway ' +
        'was paused for longer than `lock.leaseMs`. unreadable: a record has another encryption key, or is damaged. clock: ' +
        "the wall clock of Redis' or PostgreSQL's host was stepped by more than a second, and records expire early or late: slew it, never " +
        'step it. Do: the panels beside this one say when; each alert has its page in the runbook.',
      unit: units.Short,
      queries: [
        { expr: lastDay('oncegate_complete_late_total', GATEWAYS), legend: 'sent before stored' },
        { expr: lastDay('oncegate_complete_unreplicated_total', GATEWAYS), legend: 'not replicated' },
        { expr: lastDay('oncegate_stale_total', GATEWAYS), legend: 'stale' },
        { expr: lastDay('oncegate_lease_lost_total', GATEWAYS), legend: 'lease lost' },
        { expr: lastDay('oncegate_unreadable_records_total', GATEWAYS), legend: 'unreadable' },
        { expr: lastDay('oncegate_store_clock_steps_total', GATEWAYS), legend: 'clock' },
      ],
      thresholds: { red: 0.5 },
      ...{ size: [12, 8], runbook: 'runbook/OncegateCompleteLate.md' },
    }),
    series({
      title: 'Late, pending and unreplicated results',
      description:
        'Events in each step: responses that were sent before they were stored, and attempts to store that did not reach the ' +
        'replicas. pending: writes that are repeated now, because the store has not answered. Do: bring the store back, and do ' +
        'not restart a gateway while writes are pending.',
      unit: units.Short,
      queries: [
        { expr: increaseOf('oncegate_complete_late_total', GATEWAYS), legend: 'late' },
        { expr: increaseOf('oncegate_complete_unreplicated_total', GATEWAYS), legend: 'not replicated' },
        { expr: `sum by (instance) (oncegate_pending_writes{${GATEWAYS}})`, legend: 'pending: {{instance}}' },
      ],
      thresholds: { red: 0.5 },
      ...{ size: [12, 8], runbook: 'runbook/OncegateCompleteLate.md' },
    }),
    series({
      title: 'Stale writes and lost leases',
      description:
        'Events in each step. Writes that the store refused because another execution owns the record: fencing has worked. ' +
        'complete is the serious one: a response was not stored, because the key had been resolved or sent again meanwhile; ' +
        'find the log line "a late response was not stored: the key has another result", and compare with the backend\'s books. ' +
        'lease lost: a lease lapsed while its owner was alive. Do: look for pauses of the process or of the store at that time.',
      unit: units.Short,
      queries: [
        { expr: increaseBy('write', 'oncegate_stale_total', GATEWAYS), legend: '{{write}}' },
        { expr: increaseOf('oncegate_lease_lost_total', GATEWAYS), legend: 'lease lost' },
      ],
      colors: { complete: 'red' },
      dataLinks: [toLogs('Log lines', `write=\`${labelOf('write')}\``)],
      ...{ size: [12, 8], runbook: 'runbook/OncegateStaleWrites.md' },
    }),
    series({
      title: 'Unreadable records',
      description:
        'Events in each step: commands that failed because a record cannot be read, so its key gets 503. unknown_key: this ' +
        'gateway does not have the encryption key. not_authentic: the key has another secret here, or the record was changed. ' +
        'damaged: the record is broken. Do: the log line "a record cannot be read" has the record id and why.',
      unit: units.Short,
      queries: [
        { expr: increaseBy('reason', 'oncegate_unreadable_records_total', GATEWAYS), legend: '{{reason}}' },
      ],
      thresholds: { red: 0.5 },
      dataLinks: [toLogs('Log lines', 'msg=`a record cannot be read`')],
      ...{ size: [12, 8], runbook: 'runbook/OncegateUnreadableRecords.md' },
    }),
  ],
};

const idempotency: Row = {
  title: 'Idempotency',
  panels: [
    series({
      title: 'Replays and conflicts',
      description:
        'Duplicates. replayed: they got the stored result; a steep rise means that merchants do not get the first answers. ' +
        'in_flight: the first request ran for longer than the wait, so the backend is slow. mismatch: a merchant uses one key for ' +
        'different requests. in_doubt: the outcome of the first request is unknown. not_stored: its response was larger than ' +
        '`idempotency.maxStoredBytes`. Do: for mismatch tell the merchant; for in_doubt resolve the key.',
      unit: units.RequestsPerSecond,
      queries: [
        { expr: rateOf('oncegate_idempotency_hits_total', GATEWAYS), legend: 'replayed' },
        { expr: rateBy('kind', 'oncegate_idempotency_conflicts_total', GATEWAYS), legend: '{{kind}}' },
      ],
      colors: { replayed: 'blue', in_doubt: 'red' },
      size: [8, 8],
    }),
    series({
      title: 'In flight, executing and waiting',
      description:
        'Requests that are being answered; keys that are being executed, from the start until the response is stored; duplicates ' +
        'that wait for a first result. At `limits.inFlight` (10,000) new requests get 503 `overloaded`, at ' +
        '`idempotency.maxWaiters` (5,000) duplicates get 409. Executing far above "Slots in use": responses wait for the store. ' +
        'Do: if they rise while traffic does not, something is slow, see "Store latency" and "How sending ended".',
      unit: units.Short,
      queries: [
        { expr: `oncegate_in_flight{${GATEWAYS}}`, legend: '{{instance}} in flight' },
        { expr: `oncegate_executing{${GATEWAYS}}`, legend: '{{instance}} executing' },
        { expr: `oncegate_waiting{${GATEWAYS}}`, legend: '{{instance}} waiting' },
      ],
      ...{ size: [8, 8], runbook: 'runbook/OncegateInFlightFull.md' },
    }),
    series({
      title: 'Share of payouts without a key',
      description:
        'The share of requests without a key, for each operation that takes one. Every retry of such a request is a second ' +
        'payout. Do: ask the merchants to send keys; when this is 0, set `idempotency.key: required`.',
      unit: units.PercentUnit,
      queries: [
        {
          expr: orZero(
            `${rateBy('operation', 'oncegate_unprotected_total', GATEWAYS)} / ` +
              `(${rateBy('operation', 'oncegate_requests_total', GATEWAYS)} > 0)`,
            'operation',
          ),
          legend: '{{operation}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.01 } },
      ...{ size: [8, 8], runbook: 'runbook/OncegateUnprotectedPayouts.md' },
    }),
    series({
      title: 'Age of the oldest key in doubt, and of the count',
      description:
        'A line that climbs for hours means that nobody resolves the oldest key. counted: for how long no gateway has counted ' +
        'the keys in doubt; before the first count it is the time since 1970. More than a few minutes: the store does not answer. ' +
        'Do: resolve the key, or look at the store; `oncegate records list --in-doubt` counts at once.',
      unit: units.Seconds,
      queries: [
        { expr: ofTheStore('oncegate_oldest_in_doubt_seconds'), legend: '{{job}} {{store}}' },
        {
          expr: `min by (job) (oncegate_in_doubt_page_after_seconds{${GATEWAYS}})`,
          legend: '{{job}}: pages somebody from here on',
        },
        {
          expr: `time() - max by (job, store) (${withStore(`oncegate_doubts_counted_timestamp_seconds{${GATEWAYS}}`)})`,
          legend: '{{job}} {{store}}: counted',
        },
      ],
      thresholds: { yellow: 900, red: 3600 },
      ...{ size: [8, 8], runbook: 'runbook/OncegateDoubtsNotCounted.md' },
    }),
    series({
      title: 'Resolutions, lookups and requests sent again',
      onlyEvents: true,
      description:
        'Events in each step. Resolved keys, by whom: the next retry of a released key is executed. lookup: what the backend said ' +
        'of a key; if unknown and failed continue, find the log line "a lookup did not decide a key in doubt". sent again: under ' +
        '`idempotency.inDoubt: retry`. Do: check that each release had a good reason; compare what was sent again with the ' +
        "backend's books.",
      unit: units.Short,
      queries: [
        {
          expr: `max by (job, store, as, by) (${withStore(`increase(oncegate_resolutions_total{${GATEWAYS}}[$__rate_interval])`)})`,
          legend: '{{job}} {{store}} {{as}} by {{by}}',
        },
        { expr: increaseBy('result', 'oncegate_lookups_total', GATEWAYS), legend: 'lookup: {{result}}' },
        { expr: increaseOf('oncegate_sent_again_total', GATEWAYS), legend: 'sent again' },
      ],
      dataLinks: [toLogs('Resolutions in the log', 'msg=`a key in doubt was resolved`')],
      ...{ size: [8, 8], runbook: 'runbook/OncegateLookupsFail.md' },
    }),
    series({
      title: 'Under observe mode',
      onlyEvents: true,
      description:
        'What a gateway with `idempotency.mode: observe` would have done with requests with a key, in each step. All of them were ' +
        'sent. replayed, waited, mismatch, in_doubt: duplicates that would have been stopped, each of them perhaps a second payout. ' +
        'not observed: the store did not answer. Do: look up the merchants in the log, by the field `would`; when the trial is ' +
        'over, set `idempotency.mode: protect`.',
      unit: units.Short,
      queries: [
        { expr: `sum(oncegate_observing{${GATEWAYS}})`, legend: 'gateways that observe' },
        { expr: increaseBy('would', 'oncegate_observed_total', GATEWAYS), legend: '{{would}}' },
        { expr: increaseOf('oncegate_unobserved_total', GATEWAYS), legend: 'not observed' },
      ],
      colors: { replayed: 'red', waited: 'red', 'not observed': 'orange' },
      dataLinks: [toLogs('Log lines', `would=\`${labelOf('would')}\``)],
      ...{ size: [8, 8], runbook: 'runbook/OncegateObserving.md' },
    }),
  ],
};

const store: Row = {
  title: 'Store',
  panels: [
    states({
      title: 'Store takes writes',
      description:
        'Red: several starts in a row have failed. Requests with a new key get 503 `store_unavailable`, replays are served if ' +
        'the store can be read, and the gateway resumes by itself. It turns green with the next start that succeeds. Do: `/readyz` names the reason: a full ' +
        'disk, a file system that is read-only, a Redis without memory. A line "same store" is red while the store has forgotten keys: ' +
        'it gets no new ones until an operator accepts that.',
      unit: units.Short,
      queries: [
        { expr: `oncegate_store_refuses_writes{${GATEWAYS}}`, legend: '{{instance}}' },
        { expr: `oncegate_store_forgot{${GATEWAYS}}`, legend: '{{instance}} same store' },
      ],
      ...{ good: 'takes writes', bad: 'refuses writes', goodIs: 0 },
      ...{ size: [8, 8], runbook: 'runbook/OncegateStoreRefusesWrites.md' },
    }),
    series({
      title: 'Store latency by command, p99',
      description:
        'After `store.timeoutMs` (500 ms by default) a command counts as failed. start and complete are durable writes, peek is a ' +
        'read: if only the writes are slow, the disk is slow. If all are slow, it is the network, the CPU of the server, or this ' +
        'process (see "Event-loop lag"). Do: look at the disk; on Redis also at the server\'s slow log and its forks.',
      unit: units.Seconds,
      queries: [{ expr: quantile(0.99, storeSeconds, GATEWAYS, 'command'), legend: '{{command}}' }],
      thresholds: { yellow: 0.05, red: 0.25 },
      ...{ size: [8, 8], runbook: 'runbook/OncegateStoreFailing.md' },
    }),
    series({
      title: 'Store errors by command',
      description:
        'Share of commands that failed or were not answered in time. start: merchants get 503, nothing is sent. complete: ' +
        'responses are held back, then sent before they are stored. renew: leases may lapse. Do: bring the store back; do not ' +
        'restart gateways while complete fails.',
      unit: units.PercentUnit,
      queries: [
        {
          expr: orZero(
            `${rateBy('command', `${storeSeconds}_count`, `${GATEWAYS}, result="failed", command!="health"`)} / ` +
              `(${rateBy('command', `${storeSeconds}_count`, `${GATEWAYS}, command!="health"`)} > 0)`,
            'command',
          ),
          legend: '{{command}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.001, red: 0.01 } },
      ...{ size: [8, 8], runbook: 'runbook/OncegateStoreFailing.md' },
    }),
    series({
      title: 'SQLite: commit time',
      description:
        'Transactions of the writer thread, the wait for other processes and for the disk included; 0 with Redis. Every payout ' +
        'waits for two. Above 50 ms the disk is slow, or another process holds the write lock. Do: look at the disk (fsync), ' +
        'and for backups or `sqlite3` sessions that write.',
      unit: units.Seconds,
      queries: [0.5, 0.99].map((which) => ({
        expr: orZero(`${quantile(which, commit, GATEWAYS)} >= 0`),
        legend: `p${which * 100}`,
      })),
      thresholds: { yellow: 0.05, red: 0.25 },
      size: [6, 8],
    }),
    series({
      title: 'SQLite: writer queue',
      description:
        'Writes that wait for the commit before theirs, and are then committed together; 0 with Redis. A queue that grows means ' +
        'that commits are slower than payouts come. Do: see "SQLite: commit time"; use a faster disk, or move to Redis. More ' +
        'gateways on the same file do not help.',
      unit: units.Short,
      queries: [{ expr: `oncegate_sqlite_writer_queue{${GATEWAYS}}`, legend: '{{instance}}' }],
      thresholds: { yellow: 100, red: 1000 },
      size: [6, 8],
    }),
    series({
      title: 'SQLite: write-ahead log',
      description:
        'The size of `records.db-wal`; 0 with Redis. SQLite empties it by itself, unless something reads for a long time. Above ' +
        '256 MiB reads become slow and the disk fills. Do: end open transactions in `sqlite3`, and backups that hang.',
      unit: units.BytesIEC,
      queries: [{ expr: `oncegate_sqlite_wal_bytes{${GATEWAYS}}`, legend: '{{instance}}' }],
      thresholds: { yellow: 64 * MIB, red: 256 * MIB },
      ...{ size: [6, 8], runbook: 'runbook/OncegateWalGrows.md' },
    }),
    series({
      title: 'SQLite: free disk space',
      description:
        'What the file system of `store.path` has left. Below 64 MiB no new key is started. Only gateways with SQLite have a line; ' +
        'without any there is "none" at 0. Do: free space, or give the volume more. Never delete records.',
      unit: units.BytesIEC,
      queries: [
        {
          expr: orZero(`min by (instance) (oncegate_store_disk_free_bytes{${GATEWAYS}})`, 'instance'),
          legend: '{{instance}}',
        },
      ],
      ...{ ground: 'red', thresholds: { yellow: 256 * MIB, green: 1024 * MIB } },
      ...{ size: [6, 8], runbook: 'runbook/OncegateDiskSpaceLow.md' },
    }),
  ],
};

const backend: Row = {
  title: 'Backend',
  panels: [
    series({
      title: 'How sending ended',
      description:
        'complete: a response. oversize: a response too large to be stored. not_sent: surely no byte was sent, the key is free ' +
        'again. unknown: the request may have been executed, the key is in doubt. Do: for not_sent look at the way to the ' +
        'backend (DNS, TCP, TLS); for unknown look at the backend itself.',
      unit: units.RequestsPerSecond,
      queries: [{ expr: rateBy('result', `${upstream}_count`, GATEWAYS), legend: '{{result}}' }],
      colors: { complete: 'green', not_sent: 'orange', unknown: 'red' },
      ...{ size: [8, 8], runbook: 'runbook/OncegateUpstreamUnreachable.md' },
    }),
    series({
      title: 'Slots in use',
      description:
        'Share of the connections to the backend that are in use, of `upstream.maxConnections` (64 per process by default). At ' +
        '100 % requests queue. Streams and lookups are not counted. Do: if the backend is slow, it is the bottleneck; if it is ' +
        'fast, raise `upstream.maxConnections` or add gateways.',
      unit: units.PercentUnit,
      queries: [
        {
          expr: `oncegate_upstream_slots_in_use{${GATEWAYS}} / (oncegate_upstream_slots{${GATEWAYS}} > 0)`,
          legend: '{{instance}}',
        },
      ],
      ...{ max: 1, thresholds: { yellow: 0.8, red: 1 } },
      ...{ size: [8, 8], runbook: 'runbook/OncegateSlotsFull.md' },
    }),
    series({
      title: 'Slots in use for long',
      description:
        'Connections to the backend that one request has had in use for longer than five seconds, and since before the scrape ' +
        'before the last one. Merchants who retry after 1 s, 2 s and 4 s give up after 7 s. A backend that hangs shows here before ' +
        '`upstream.responseTimeoutMs`. Do: see "The backend by operation" for whether it still answers, and tell its owners.',
      unit: units.Short,
      queries: [{ expr: `oncegate_upstream_slots_held_long{${GATEWAYS}}`, legend: '{{instance}}' }],
      ...{ size: [8, 8], runbook: 'runbook/OncegateUpstreamHangs.md' },
    }),
    series({
      title: 'Queued for a slot, and streams',
      description:
        'Requests that wait for a connection to the backend: nothing is stored or sent for them yet, and at `upstream.maxQueued` ' +
        '(1,000) or after `upstream.queueTimeoutMs` they get 503 `overloaded`. Passed-through requests and WebSockets have a ' +
        'connection each, at most `upstream.maxStreams` (256). Do: see "Slots in use"; raise `upstream.maxStreams` as far as the ' +
        'backend can serve.',
      unit: units.Short,
      queries: [
        { expr: `oncegate_upstream_slots_queued{${GATEWAYS}}`, legend: '{{instance}} queued' },
        { expr: `oncegate_streams{${GATEWAYS}}`, legend: '{{instance}} streams' },
      ],
      ...{ size: [8, 8], runbook: 'runbook/OncegateOverloaded.md' },
    }),
  ],
};

const keys: Row = {
  title: 'Keys, certificates and limits',
  panels: [
    series({
      title: 'Secret keys loaded',
      description:
        'Secret keys that each gateway knows. If the number falls, merchants get 401. If the lines differ for more than a few ' +
        'seconds, the gateways use different key files. Do: compare the key files. A gateway refuses a broken file as a whole, ' +
        'and the old keys stay in force. The second line of each gateway counts the merchants whose keys all end within seven days.',
      unit: units.Short,
      queries: [
        { expr: `oncegate_secret_keys{${GATEWAYS}}`, legend: '{{instance}}' },
        { expr: `oncegate_merchants_expiring{${GATEWAYS}}`, legend: '{{instance}}, merchants that end' },
      ],
      ...{ size: [6, 8], runbook: 'operations.md#rotate-secret-keys' },
    }),
    series({
      title: 'Keys and certificates end',
      description:
        'When the first merchant has no valid secret key left, and gets 401 for every request; and when the first certificate of a ' +
        'gateway expires. "none" in 1970: nothing ends. Do: `oncegate keys list` names the merchant; put new certificate files ' +
        'into place of the old ones, and the gateway reads them by itself.',
      unit: units.DateTimeFromNow,
      queries: [
        whenFirst('oncegate_secret_key_expires_timestamp_seconds', 'keys'),
        whenFirst('oncegate_certificate_expires_timestamp_seconds', 'certificate'),
      ],
      ...{ size: [6, 8], runbook: 'runbook/OncegateKeyExpires.md' },
    }),
    series({
      title: 'Probes of secret keys',
      description:
        'With `auth.keys.source: upstream`: how often the gateways asked the backend whose secret key it is. Many `refused` or ' +
        '`overloaded`: someone tries invented keys. `failed`: the backend does not answer, and new keys get 503. ' +
        '`merchant_changed`: the backend names another merchant than before, and the key is refused. Do: `/readyz` and the ' +
        'log say why; docs/operations.md#keys-of-the-backend has the steps.',
      unit: units.OpsPerSecond,
      queries: [{ expr: rateBy('result', 'oncegate_key_probes_total', GATEWAYS), legend: '{{result}}' }],
      ...{ size: [6, 8], runbook: 'operations.md#keys-of-the-backend' },
    }),
    series({
      title: 'Refused by limits and TLS',
      description:
        'requests, in_flight: 429, because a merchant sends too many, or too many at once (`limits.perMerchant`). connections: ' +
        'closed at once, because `limits.connections` others (20,000 by default) were open. handshake: no TLS version in common, ' +
        'a certificate that is not trusted, or a probe that only connects. Do: the log names the merchant; look for clients that ' +
        'open connections and do not use them.',
      unit: units.OpsPerSecond,
      queries: [
        { expr: rateBy('reason', 'oncegate_rate_limited_total', GATEWAYS), legend: '{{reason}}' },
        { expr: rateOf('oncegate_connections_refused_total', GATEWAYS), legend: 'connections' },
        { expr: rateBy('reason', handshakes, GATEWAYS), legend: 'handshake: {{reason}}' },
      ],
      dataLinks: [toLogs('Log lines of 429', 'outcome=`rate_limited`')],
      ...{ size: [6, 8], runbook: 'runbook/OncegateConnectionsRefused.md' },
    }),
  ],
};

const processes: Row = {
  title: 'Process and configuration',
  panels: [
    series({
      title: 'CPU, garbage collection and descriptors',
      description:
        'CPU: share of one core; a process does most of its work on one, so requests queue near 100 %. collection: share of the time ' +
        'that garbage collection takes; above a few percent it delays requests. descriptors: share of the allowed open files; at 100 % no ' +
        'connection can be opened or accepted. Do: add gateways, give the process a larger heap, or raise `LimitNOFILE`.',
      unit: units.PercentUnit,
      queries: [
        { expr: rateBy('instance', 'process_cpu_seconds_total', GATEWAYS), legend: '{{instance}} CPU' },
        // Node has no number before the first collection.
        {
          expr: orZero(rateBy('instance', collections, GATEWAYS), 'instance'),
          legend: '{{instance}} collection',
        },
        {
          expr: `process_open_fds{${GATEWAYS}} / process_max_fds{${GATEWAYS}}`,
          legend: '{{instance}} descriptors',
        },
      ],
      thresholds: { yellow: 0.7, red: 0.9 },
      size: [8, 8],
    }),
    series({
      title: 'Memory',
      description:
        'Resident memory, the heap in use, and the bodies of requests, which `limits.bufferedBytes` bounds. A peak with many large ' +
        'bodies is normal, a line that only rises is a leak. Do: lower `limits.bufferedBytes`; for a leak, take a heap snapshot ' +
        'before the restart.',
      unit: units.BytesIEC,
      queries: [
        { expr: `process_resident_memory_bytes{${GATEWAYS}}`, legend: '{{instance}} resident' },
        { expr: `nodejs_heap_size_used_bytes{${GATEWAYS}}`, legend: '{{instance}} heap' },
        { expr: `oncegate_buffered_bytes{${GATEWAYS}}`, legend: '{{instance}} bodies' },
      ],
      thresholds: { yellow: GIB, red: 2 * GIB },
      size: [8, 8],
    }),
    series({
      title: 'Event-loop lag',
      description:
        'How late the event loop runs its next task; values up to about 10 ms are the resolution of the measurement. The lag adds ' +
        'to every request, and above two thirds of `lock.leaseMs` leases lapse. Do: see the CPU; if it is idle, look for a paused ' +
        'machine, CPU limits of the container, or swapping.',
      unit: units.Seconds,
      queries: [
        { expr: `nodejs_eventloop_lag_p99_seconds{${GATEWAYS}}`, legend: '{{instance}} p99' },
        { expr: `nodejs_eventloop_lag_max_seconds{${GATEWAYS}}`, legend: '{{instance}} max' },
      ],
      thresholds: { yellow: 0.1, red: 1 },
      size: [8, 8],
    }),
    series({
      title: 'Gateways by version and configuration',
      description:
        'How many gateways run each version, on which Node, built from which commit; and how many have each mode, handling of ' +
        'undeclared requests, store and source of secret keys. More than one line of a kind for longer than a deployment takes: ' +
        'some gateways were not replaced, or have other files, perhaps even another store. Do: compare the instances.',
      unit: units.Short,
      queries: [
        {
          expr: `count by (version, node, commit) (oncegate_build_info{${GATEWAYS}})`,
          legend: '{{version}}, Node {{node}}, {{commit}}',
        },
        {
          expr: `count by (mode, undeclared, store, keys) (oncegate_config_info{${GATEWAYS}})`,
          legend: '{{mode}}, undeclared: {{undeclared}}, {{store}}, keys: {{keys}}',
        },
      ],
      ...{ size: [8, 8], runbook: 'operations.md#deploy-and-stop' },
    }),
    stat({
      title: 'Warnings now, and reloads in the last 24 h',
      description:
        'Warnings, by what they are about, as `/readyz` says them in words: they do not stop the gateway, but each can harm it ' +
        'later. refused: a changed file has a mistake, and the old one stays in force: a revoked key still works, a certificate ' +
        'expires. needs restart: a part of the configuration is not in force. Do: the log names every mistake; correct the file ' +
        'before a restart.',
      unit: units.Short,
      queries: [
        { expr: `max by (about) (oncegate_config_warnings{${GATEWAYS}})`, legend: 'warnings: {{about}}' },
        ...['key', 'certificate', 'config'].flatMap((what) =>
          ['ok', 'refused', ...(what === 'config' ? ['needs_restart'] : [])].map((result) => ({
            expr: lastDay(`oncegate_${what}_reloads_total`, `${GATEWAYS}, result="${result}"`),
            legend: `${what}: ${result.replace('_', ' ')}`,
          })),
        ),
      ],
      thresholds: { red: 0.5 },
      own: Object.fromEntries(
        ['key: ok', 'certificate: ok', 'config: ok'].map((name) => [
          name,
          { ground: 'blue', thresholds: {} },
        ]),
      ),
      dataLinks: [toLogs('Log lines', 'msg=~`.*configuration.*|.*certificate.*|the secret keys .*`')],
      ...{ size: [8, 8], runbook: 'runbook/OncegateConfigRefused.md' },
    }),
    series({
      title: 'Spans of traces',
      description:
        'With `tracing.endpoint`: spans that the collector has taken (exported), those that it refused or did not answer for ' +
        '(failed), and those that were thrown away because too many waited (dropped). Requests are not affected. Do: look at the ' +
        'collector; the log says why. Without tracing all lines are 0.',
      unit: units.OpsPerSecond,
      queries: [{ expr: rateBy('result', 'oncegate_spans_total', GATEWAYS), legend: '{{result}}' }],
      colors: { exported: 'green', failed: 'red', dropped: 'orange' },
      size: [8, 8],
    }),
  ],
};

export const internals: PageOptions = {
  page: 'internals',
  title: 'Internals',
  description:
    'The parts behind the overview: writes, idempotency, store, backend, keys, process. Open a row.',
  isClosed: true,
  rows: [writes, idempotency, store, backend, keys, processes],
};
