import type { CATALOGUE } from '../../src/telemetry/catalogue.ts';

const RESOLVE = '[Resolve](runbook/resolve-a-key-in-doubt.md) them';
const PAUSED =
  'Look for gateways that are paused for longer than `lock.leaseMs`: processor, memory, suspended machines';
const SIZE = '[Size](configuration.md#size-the-slots-and-the-queue) the slots';
const CERTIFICATES = '[Certificates](operations.md#certificates)';

/** What a reader of docs/metrics.md should know beside a metric's meaning, and what to do about its value. May be empty. */
export const NOTES: Record<keyof typeof CATALOGUE, string> = {
  requests: '',
  requestSeconds: 'The time in the queue for a slot is a part of it',
  gatewaySeconds: 'The time in the queue for a slot is a part of it',
  inFlight: 'Their limit is `limits.inFlight`',
  bufferedBytes: 'At `limits.bufferedBytes`, further bodies get 503 `overloaded`',
  rateLimited: "The log names the merchant: raise that merchant's limit, or ask them to send less",
  connectionsRefused:
    'Look for clients that keep idle connections; raise the limit and that of open files, or add gateways',
  merchantRequests: '',
  merchantSeconds: '',
  merchantInDoubt: '',
  hits: 'Payouts that would have been made twice',
  conflicts: "`mismatch` is a mistake in a merchant's client",
  unprotected: 'Ask the merchant to send keys, or set `idempotency.key: required`',
  executing: '',
  waiting: '',
  observing: 'Set `mode: protect` when the trial is over',
  observed:
    '[The words](configuration.md#observe-before-you-protect). The log has the merchants, by the field `would`',
  unobserved:
    '`store`: it did not answer; `too_many`: it answers too slowly. The counts of the trial are too low meanwhile',
  inDoubt:
    "`timeout`: no complete response within `upstream.responseTimeoutMs`. `connection`: it broke, or the response was not valid HTTP. `status`: one of the operation's `unknown` statuses: raise the time limit of the proxy in front of the backend",
  sentAgain: "Compare with the backend's books",
  lookups:
    'If `unknown` and `failed` continue, the log line "a lookup did not decide a key in doubt" says what the backend answered',
  keysInDoubt: RESOLVE,
  keysOwnerGone: RESOLVE,
  oldestInDoubt: RESOLVE,
  inDoubtPageAfter: 'The alert is [OncegateInDoubtOld](runbook/OncegateInDoubtOld.md)',
  doubtsCounted: 'If it is old, the store does not answer: `/readyz` says why',
  resolutions: 'Each has its audit record',
  stale: `${PAUSED}. \`complete\`: a response arrived for a key that had been resolved or sent again: [OncegateStaleWrites](runbook/OncegateStaleWrites.md)`,
  leaseLost: `${PAUSED}; or the store is slow`,
  completeLate: 'Bring the store back. The gateway repeats the write; do not restart it before',
  unreplicated:
    'Each repetition counts. Look at the replicas: the gateway repeats the write until they have it',
  pendingWrites: 'Do not restart the gateway while it is not 0',
  storeSeconds: '',
  storeInfo:
    'Joins the metrics of one store: `max by (store) (oncegate_keys_in_doubt * on (job, instance) group_left (store) oncegate_store_info)`',
  storeRefuses:
    'It does so when it is not connected, full or fails writes, and after eight failed starts in a row. One request at a time tries a start. `/readyz` names the reason',
  storeForgot: '[After a backup was restored](runbook/after-a-backup-was-restored.md)',
  unreadable:
    'The merchant gets 503, and nothing is executed. The log line "a record cannot be read" has the record id: give this gateway [the missing key](operations.md#change-encryption-keys)',
  clockSteps: 'Slew that clock, never step it: [Clocks](reliability.md#clocks)',
  sqliteQueue: 'If it stays high, the disk is too slow',
  sqliteCommitSeconds: 'If it stays high, the disk is too slow',
  sqliteWalBytes:
    'If it grows without end, a reader of the files prevents SQLite from emptying it: end that process',
  storeDiskFree: 'Make room before the disk is full',
  upstreamSeconds: 'It begins when the request has its slot',
  upstreamResponses:
    "Once for each request that had its turn, replays not included. A `5xx` is a result: it is stored and replayed. Of a request with a key, one of the operation's `unknown` statuses (502, 503, 504, …) counts as `unknown`. [OncegateUpstreamErrors](runbook/OncegateUpstreamErrors.md), [OncegateOutcomesUnknown](runbook/OncegateOutcomesUnknown.md)",
  slots: 'The option `upstream.maxConnections`',
  slotsInUse: `At the limit with a slow backend, the backend is the bottleneck; with a fast one, raise \`maxConnections\`, or add gateways. ${SIZE}`,
  slotsHeldLong:
    'A backend that hangs shows here before its time limit: [OncegateUpstreamHangs](runbook/OncegateUpstreamHangs.md). The gauge is updated only when a scrape or the console reads it, so with one scrape every 15 seconds it counts those of more than 15',
  slotsQueued: `Their limit is \`upstream.maxQueued\`. ${SIZE}`,
  streams: 'At `upstream.maxStreams`, raise the limit as far as the backend can serve',
  keys: 'With `auth.keys.source: upstream`, those that the backend has accepted',
  merchantsExpiring: '[OncegateKeyExpires](runbook/OncegateKeyExpires.md)',
  keyExpires: '[OncegateKeyExpires](runbook/OncegateKeyExpires.md)',
  keyReloads:
    '`refused`: correct the key file; the old keys stay in force. `merchants_removed`: [OncegateMerchantsRemoved](runbook/OncegateMerchantsRemoved.md)',
  keyProbes:
    '`failed`: `/readyz` and the log say why. `overloaded`: someone tries invented keys, or [the limits](configuration.md#keys-of-the-backend) are too low. `merchant_changed`: [OncegateMerchantChanged](runbook/OncegateMerchantChanged.md)',
  handshakesFailed: `\`disconnected\`: also a probe that only opens a connection. The log has each on level \`debug\`. ${CERTIFICATES}`,
  certificateReloads: CERTIFICATES,
  certificateExpires: CERTIFICATES,
  spans:
    '`failed`: the collector refused them, or did not answer within `tracing.timeoutMs`; `dropped`: `tracing.maxQueued` others waited. Requests are not affected. The log has the reason',
  configReloads:
    '`refused`: correct the file; the old configuration stays in force. `needs_restart`: restart the gateway to put the whole file in force',
  configWarnings: '`/readyz` has their texts',
  configInfo: '',
  buildInfo: 'The log line "listening" has the same',
};
