import { RESPONSE_CLASSES } from '../lib/exchange.ts';
import { counter, gauge, histogram } from './definition.ts';
import { OUTCOMES, STORE_COMMANDS, WARNED_ABOUT, WOULD } from './label-values.ts';

/** Seconds. From the quickest replay to a backend that takes a minute. Those around the time limits are added: {@link boundsAround}. */
const SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
/** Seconds. `store.timeoutMs`, half a second by default, limits a command. */
const STORE_SECONDS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1];
/** Seconds. Few, because a hundred merchants may have them. */
const MERCHANT_SECONDS = [0.01, 0.05, 0.25, 1, 5, 30];

/**
 * Every metric of the gateway, by the name of its field in `AllMetrics`. An idempotency key, a path or a name that a request brings
 * is never the value of a label, because each value would be a new series.
 */
export const CATALOGUE = {
  // Requests.
  requests: counter('oncegate_requests_total', 'Requests answered, by how they ended', {
    labels: { operation: 'operations, none', outcome: OUTCOMES },
  }),
  requestSeconds: histogram(
    'oncegate_request_duration_seconds',
    'From receiving the head of a request to sending the last byte of its response',
    {
      labels: { operation: 'operations, none' },
      ...{ buckets: SECONDS, isLimited: true, hasExemplars: true, isFine: true },
    },
  ),
  gatewaySeconds: histogram(
    'oncegate_gateway_duration_seconds',
    'The gateway’s share of a request: without the time of the backend, and without waiting for another request',
    { labels: { operation: 'operations, none' }, buckets: SECONDS, isFine: true },
  ),
  inFlight: gauge(
    'oncegate_in_flight',
    'Requests in flight, including executions whose merchant has disconnected',
  ),
  bufferedBytes: gauge('oncegate_buffered_bytes', 'Bytes of request bodies that are held in memory'),
  rateLimited: counter(
    'oncegate_rate_limited_total',
    'Requests refused by limits.perMerchant, by reason: requests, in_flight',
    { labels: { reason: ['requests', 'in_flight'] } },
  ),
  connectionsRefused: counter(
    'oncegate_connections_refused_total',
    'Connections closed at once because limits.connections were already open',
  ),

  // Requests of the merchants that metrics.merchants names.
  merchantRequests: counter(
    'oncegate_merchant_requests_total',
    'Requests of authenticated merchants, by how they ended',
    { labels: { merchant: 'merchants', outcome: OUTCOMES } },
  ),
  merchantSeconds: histogram(
    'oncegate_merchant_request_duration_seconds',
    'As oncegate_request_duration_seconds, of authenticated merchants',
    { labels: { merchant: 'merchants' }, buckets: MERCHANT_SECONDS, isLimited: true },
  ),
  merchantInDoubt: counter(
    'oncegate_merchant_in_doubt_total',
    'Executions whose outcome cannot be known, by merchant',
    { labels: { merchant: 'merchants' } },
  ),

  // Idempotency keys.
  hits: counter('oncegate_idempotency_hits_total', 'Responses replayed from a completed record', {
    labels: { operation: 'operations' },
  }),
  conflicts: counter(
    'oncegate_idempotency_conflicts_total',
    'Duplicates that could not be replayed: in_flight, mismatch, in_doubt, not_stored',
    { labels: { operation: 'operations', kind: ['in_flight', 'mismatch', 'in_doubt', 'not_stored'] } },
  ),
  unprotected: counter(
    'oncegate_unprotected_total',
    'Requests without an idempotency key, of operations that accept one',
    { labels: { operation: 'operations' } },
  ),
  executing: gauge('oncegate_executing', 'Executions with an idempotency key that run now'),
  waiting: gauge('oncegate_waiting', 'Duplicates that wait for the result of the first request'),
  observing: gauge(
    'oncegate_observing',
    '1 under idempotency.mode: observe: every request is sent to the backend, duplicates included',
    { combine: 'max' },
  ),
  observed: counter(
    'oncegate_observed_total',
    'Under idempotency.mode: observe, requests that were sent to the backend, by what mode: protect would have done',
    {
      labels: { operation: 'operations', would: WOULD },
      exists: 'from the start under idempotency.mode: observe; otherwise of the operation undeclared only',
    },
  ),
  unobserved: counter(
    'oncegate_unobserved_total',
    'Under idempotency.mode: observe, requests with a key of which the store could not say whether they are duplicates',
    {
      labels: { operation: 'operations', reason: ['store', 'too_many'] },
      exists: 'from the start under idempotency.mode: observe; otherwise of the operation undeclared only',
    },
  ),

  // Keys in doubt.
  inDoubt: counter('oncegate_in_doubt_total', 'Executions whose outcome cannot be known, by cause', {
    labels: { operation: 'operations', cause: ['timeout', 'connection', 'status'] },
  }),
  sentAgain: counter(
    'oncegate_sent_again_total',
    'Requests in doubt that were sent again, under inDoubt: retry',
    { labels: { operation: 'operations' } },
  ),
  lookups: counter('oncegate_lookups_total', 'Lookups of keys in doubt at the backend, by result', {
    labels: { operation: 'operations', result: ['completed', 'released', 'unknown', 'failed'] },
  }),
  keysInDoubt: gauge(
    'oncegate_keys_in_doubt',
    'Keys in doubt in the store, including those of oncegate_keys_owner_gone',
    { labels: { operation: 'operations' }, combine: 'max' },
  ),
  keysOwnerGone: gauge(
    'oncegate_keys_owner_gone',
    'Keys in the store that are executing and whose owner is gone: the next request with the key finds it in doubt',
    { labels: { operation: 'operations' }, combine: 'max' },
  ),
  oldestInDoubt: gauge(
    'oncegate_oldest_in_doubt_seconds',
    'Age of the oldest key in doubt in the store; 0 if there is none',
    { combine: 'max' },
  ),
  inDoubtPageAfter: gauge(
    'oncegate_in_doubt_page_after_seconds',
    'Age of the oldest key in doubt beyond which an alert pages the person on call: idempotency.inDoubtPageAfterMs',
    { combine: 'min' },
  ),
  doubtsCounted: gauge(
    'oncegate_doubts_counted_timestamp_seconds',
    'When the keys in doubt in the store were last counted, in seconds since 1970; 0: never',
    { combine: 'max' },
  ),
  resolutions: counter(
    'oncegate_resolutions_total',
    'Keys in doubt that were resolved, as the store knows: by an operator (on the admin port), a lookup or the command line',
    { labels: { as: ['completed', 'released'], by: ['operator', 'lookup', 'command_line'] }, combine: 'max' },
  ),

  // Writes that did not go as they should.
  stale: counter(
    'oncegate_stale_total',
    'Writes that the store refused because another execution owns the record',
    { labels: { write: ['renew', 'complete', 'release', 'in_doubt'] } },
  ),
  leaseLost: counter('oncegate_lease_lost_total', 'Leases that lapsed although their owner was alive'),
  completeLate: counter(
    'oncegate_complete_late_total',
    'Responses sent before they were stored, because the store did not answer in time',
    { labels: { operation: 'operations' } },
  ),
  unreplicated: counter(
    'oncegate_complete_unreplicated_total',
    'Results that did not reach durability.replicas in time',
  ),
  pendingWrites: gauge(
    'oncegate_pending_writes',
    'Writes that are repeated because the store has not answered',
  ),

  // The store.
  storeSeconds: histogram(
    'oncegate_store_duration_seconds',
    'Commands to the idempotency store, by command and result',
    { labels: { command: STORE_COMMANDS, result: ['ok', 'failed'] }, buckets: STORE_SECONDS },
  ),
  storeInfo: gauge(
    'oncegate_store_info',
    'Always 1. The label has the first digits of the store’s id, which all gateways on it show; unknown: not read yet',
    { labels: { store: 'of this process' }, combine: 'max', exists: 'of a gateway: one series' },
  ),
  storeRefuses: gauge(
    'oncegate_store_refuses_writes',
    '1 while the store refuses writes: new keys get 503; replays are answered if it can be read',
    { combine: 'max' },
  ),
  storeForgot: gauge(
    'oncegate_store_forgot',
    '1 while new keys are refused because the store is another one, was emptied or is older than it was',
    { combine: 'max' },
  ),
  unreadable: counter(
    'oncegate_unreadable_records_total',
    'Store commands that failed because a record cannot be read: damaged, unknown_key, not_authentic',
    { labels: { reason: ['damaged', 'unknown_key', 'not_authentic'] } },
  ),
  clockSteps: counter(
    'oncegate_store_clock_steps_total',
    'Steps of the clock of the host of Redis or PostgreSQL, which decides when records expire',
  ),
  sqliteQueue: gauge(
    'oncegate_sqlite_writer_queue',
    'Commands to SQLite that wait for the commit before theirs',
  ),
  sqliteCommitSeconds: histogram(
    'oncegate_sqlite_commit_duration_seconds',
    'Transactions of SQLite that changed something, from BEGIN to the end of COMMIT, with the wait for other processes',
    { buckets: STORE_SECONDS },
  ),
  sqliteWalBytes: gauge('oncegate_sqlite_wal_bytes', 'Size of SQLite’s write-ahead log', { combine: 'max' }),
  storeDiskFree: gauge(
    'oncegate_store_disk_free_bytes',
    'Space that the file system of store.path has for this process',
    { combine: 'min', exists: 'with store.kind: sqlite' },
  ),

  // The backend.
  upstreamSeconds: histogram(
    'oncegate_upstream_duration_seconds',
    'From sending a request to the backend to its complete response, or its failure',
    {
      labels: { operation: 'operations, none', result: ['complete', 'oversize', 'not_sent', 'unknown'] },
      ...{ buckets: SECONDS, isLimited: true, hasExemplars: true, isFine: true },
    },
  ),
  upstreamResponses: counter(
    'oncegate_upstream_responses_total',
    'Requests to the backend that have ended, by the class of the response’s status; unknown: no complete response, or a status that says nothing of a request with a key; not_sent',
    { labels: { operation: 'operations, none', class: RESPONSE_CLASSES } },
  ),
  slots: gauge('oncegate_upstream_slots', 'Connections to the backend that may be in use'),
  slotsInUse: gauge('oncegate_upstream_slots_in_use', 'Connections to the backend in use'),
  slotsHeldLong: gauge(
    'oncegate_upstream_slots_held_long',
    'Connections to the backend that one request has had in use for longer than about five seconds',
  ),
  slotsQueued: gauge('oncegate_upstream_slots_queued', 'Requests that wait for a connection to the backend'),
  streams: gauge('oncegate_streams', 'Open streams to the backend: passed-through requests and WebSockets'),

  // Secret keys.
  keys: gauge('oncegate_secret_keys', 'Secret keys that are loaded', { combine: 'max' }),
  merchantsExpiring: gauge(
    'oncegate_merchants_expiring',
    'Merchants whose secret keys all end within seven days',
    { combine: 'max' },
  ),
  keyExpires: gauge(
    'oncegate_secret_key_expires_timestamp_seconds',
    'When the first merchant has no valid secret key left, in seconds since 1970',
    { combine: 'min', exists: 'if the secret keys of a merchant all end' },
  ),
  keyReloads: counter(
    'oncegate_key_reloads_total',
    'Reloads of the secret keys: ok; refused; merchants_removed: done, and merchants who had a key have none any more',
    { labels: { result: ['ok', 'refused', 'merchants_removed'] } },
  ),
  keyProbes: counter(
    'oncegate_key_probes_total',
    'Probes of secret keys at the backend, with auth.keys.source: upstream',
    { labels: { result: ['accepted', 'refused', 'failed', 'overloaded', 'merchant_changed'] } },
  ),

  // TLS.
  handshakesFailed: counter(
    'oncegate_tls_handshakes_failed_total',
    'Connections closed because their TLS handshake failed: disconnected, timeout, refused',
    { labels: { reason: ['disconnected', 'timeout', 'refused'] } },
  ),
  certificateReloads: counter(
    'oncegate_certificate_reloads_total',
    'New versions of a certificate: ok, refused',
    { labels: { certificate: ['listen', 'upstream', 'store'], result: ['ok', 'refused'] } },
  ),
  certificateExpires: gauge(
    'oncegate_certificate_expires_timestamp_seconds',
    'When the certificate in use expires, in seconds since 1970',
    {
      labels: { certificate: ['listen', 'upstream', 'store'] },
      combine: 'min',
      exists: 'if the section has a certificate',
    },
  ),

  // Traces.
  spans: counter(
    'oncegate_spans_total',
    'Spans of traces: exported, failed (the collector did not take them), dropped (too many waited)',
    { labels: { result: ['exported', 'failed', 'dropped'] } },
  ),

  // The configuration, and what runs.
  configReloads: counter(
    'oncegate_config_reloads_total',
    'Reloads of the configuration file: ok, needs_restart (a part is not in force) or refused',
    { labels: { result: ['ok', 'needs_restart', 'refused'] } },
  ),
  configWarnings: gauge(
    'oncegate_config_warnings',
    'Warnings for the operator, as at the start and on /readyz, by what they are about',
    { labels: { about: WARNED_ABOUT }, combine: 'max' },
  ),
  configInfo: gauge('oncegate_config_info', 'Always 1. The labels say how the gateway is configured', {
    labels: {
      mode: ['protect', 'observe'],
      undeclared: ['protect', 'pass', 'refuse'],
      store: ['sqlite', 'redis', 'redis_sentinels', 'redis_cluster', 'postgres'],
      keys: ['file', 'upstream'],
    },
    combine: 'max',
    exists: 'of a gateway: one series',
  }),
  buildInfo: gauge(
    'oncegate_build_info',
    'Always 1. The labels say which version runs, on which Node, and the commit that it was built from',
    {
      labels: { version: 'of this process', node: 'of this process', commit: 'of this process' },
      combine: 'max',
      exists: 'one series, from the start',
    },
  ),
} as const;
