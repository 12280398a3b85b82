import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

/** Seconds. From the quickest replay to a backend that takes a minute. */
const SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
/** Seconds. `store.timeoutMs`, half a second by default, limits a command. */
const STORE_SECONDS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1];

/**
 * Every metric of the gateway. Labels come from bounded sets: the operation names of the configuration, and fixed words.
 * A merchant, a key or a path is never a label, because each value would be a new series.
 */
export class Metrics {
  readonly registry = new Registry();

  readonly requests = this.#counter('oncegate_requests_total', 'Requests answered, by how they ended', [
    'operation',
    'outcome',
  ]);
  readonly requestSeconds = this.#histogram(
    'oncegate_request_duration_seconds',
    'From receiving the head of a request to sending the last byte of its response',
    ['operation'],
    SECONDS,
  );
  readonly gatewaySeconds = this.#histogram(
    'oncegate_gateway_duration_seconds',
    'The gateway’s share of a request: without the time of the backend, and without waiting for another request',
    ['operation'],
    SECONDS,
  );
  readonly upstreamSeconds = this.#histogram(
    'oncegate_upstream_duration_seconds',
    'From sending a request to the backend to its complete response, or its failure',
    ['operation', 'result'],
    SECONDS,
  );
  readonly storeSeconds = this.#histogram(
    'oncegate_store_duration_seconds',
    'Commands to the idempotency store, by command and result',
    ['command', 'result'],
    STORE_SECONDS,
  );
  readonly hits = this.#counter(
    'oncegate_idempotency_hits_total',
    'Responses replayed from a completed record',
    ['operation'],
  );
  readonly conflicts = this.#counter(
    'oncegate_idempotency_conflicts_total',
    'Duplicates that could not be replayed: in_flight, mismatch, in_doubt, not_stored',
    ['operation', 'kind'],
  );
  readonly inDoubt = this.#counter(
    'oncegate_in_doubt_total',
    'Executions whose outcome cannot be known, by cause',
    ['operation', 'cause'],
  );
  readonly resolutions = this.#counter(
    'oncegate_resolutions_total',
    'Keys in doubt that an operator (on the admin port) or a lookup resolved',
    ['as', 'by'],
  );
  readonly unprotected = this.#counter(
    'oncegate_unprotected_total',
    'Requests without an idempotency key, of operations that accept one',
    ['operation'],
  );
  readonly stale = this.#counter(
    'oncegate_stale_total',
    'Writes that the store refused because another execution owns the record',
    ['write'],
  );
  readonly sentAgain = this.#counter(
    'oncegate_sent_again_total',
    'Requests in doubt that were sent again, under inDoubt: retry',
    ['operation'],
  );
  readonly lookups = this.#counter(
    'oncegate_lookups_total',
    'Lookups of keys in doubt at the backend, by result',
    ['operation', 'result'],
  );
  readonly leaseLost = this.#counter(
    'oncegate_lease_lost_total',
    'Leases that lapsed although their owner was alive',
    [],
  );
  readonly completeLate = this.#counter(
    'oncegate_complete_late_total',
    'Responses sent before they were stored, because the store did not answer in time',
    ['operation'],
  );
  readonly unreplicated = this.#counter(
    'oncegate_complete_unreplicated_total',
    'Results that did not reach durability.replicas in time',
    [],
  );
  readonly clockSteps = this.#counter(
    'oncegate_store_clock_steps_total',
    'Steps of the clock of Redis’ host, which decides when records expire',
    [],
  );
  readonly connectionsRefused = this.#counter(
    'oncegate_connections_refused_total',
    'Connections closed at once because limits.connections were already open',
    [],
  );
  readonly inFlight = this.#gauge(
    'oncegate_in_flight',
    'Requests in flight, including executions whose merchant has disconnected',
  );
  readonly executing = this.#gauge('oncegate_executing', 'Executions with an idempotency key that run now');
  readonly waiting = this.#gauge(
    'oncegate_waiting',
    'Duplicates that wait for the result of the first request',
  );
  readonly pendingWrites = this.#gauge(
    'oncegate_pending_writes',
    'Writes that are repeated because the store has not answered',
  );
  readonly storeRefuses = this.#gauge(
    'oncegate_store_refuses_writes',
    '1 while the store refuses writes: new keys get 503, replays are still answered',
    'max',
  );
  readonly slotsInUse = this.#gauge('oncegate_upstream_slots_in_use', 'Connections to the backend in use');
  readonly slotsQueued = this.#gauge(
    'oncegate_upstream_slots_queued',
    'Requests that wait for a connection to the backend',
  );
  readonly streams = this.#gauge(
    'oncegate_streams',
    'Open streams to the backend: passed-through requests and WebSockets',
  );
  readonly keys = this.#gauge('oncegate_secret_keys', 'Secret keys that are loaded', 'average');
  readonly merchantsExpiring = this.#gauge(
    'oncegate_merchants_expiring',
    'Merchants whose secret keys all end within seven days',
    'max',
  );
  readonly keyReloads = this.#counter('oncegate_key_reloads_total', 'Reloads of the key file', ['result']);

  readonly #reads: (() => void)[] = [];

  constructor() {
    collectDefaultMetrics({ register: this.registry });
    // rate() does not see the first event of a series that begins with that event, so every series begins at 0.
    for (const counter of [this.leaseLost, this.unreplicated, this.clockSteps, this.connectionsRefused])
      counter.inc(0);
    for (const command of [
      'start',
      'peek',
      'restart',
      'renew',
      'complete',
      'release',
      'in_doubt',
      'health',
    ]) {
      for (const result of ['ok', 'failed']) this.storeSeconds.zero({ command, result });
    }
    for (const write of ['renew', 'complete', 'release', 'in_doubt']) this.stale.inc({ write }, 0);
    for (const by of ['operator', 'lookup'])
      for (const as of ['completed', 'released']) this.resolutions.inc({ as, by }, 0);
    for (const result of ['ok', 'refused']) this.keyReloads.inc({ result }, 0);
  }

  /** Begins the series of these operations at 0. */
  declareOperations(names: readonly string[]): void {
    for (const operation of names) {
      for (const counter of [this.hits, this.unprotected, this.completeLate, this.sentAgain])
        counter.inc({ operation }, 0);
      for (const kind of ['in_flight', 'mismatch', 'in_doubt', 'not_stored'])
        this.conflicts.inc({ operation, kind }, 0);
      for (const result of ['complete', 'oversize', 'not_sent', 'unknown']) {
        this.upstreamSeconds.zero({ operation, result });
      }
      for (const result of ['completed', 'released', 'unknown', 'failed'])
        this.lookups.inc({ operation, result }, 0);
      for (const cause of ['timeout', 'connection', 'status']) this.inDoubt.inc({ operation, cause }, 0);
    }
  }

  /** Sets the gauge to what `read` returns, each time the metrics are read. */
  track(gauge: Gauge, read: () => number): void {
    this.#reads.push(() => gauge.set(read()));
  }

  /** Prometheus text format. */
  async text(): Promise<string> {
    for (const read of this.#reads) read();
    return await this.registry.metrics();
  }

  /** For the primary process, which adds up the metrics of its workers. */
  async snapshot(): Promise<object[]> {
    for (const read of this.#reads) read();
    return await this.registry.getMetricsAsJSON();
  }

  #counter<L extends string>(name: string, help: string, labelNames: L[]): Counter<L> {
    return new Counter({ name, help, labelNames, registers: [this.registry] });
  }

  #histogram<L extends string>(name: string, help: string, labelNames: L[], buckets: number[]): Histogram<L> {
    return new Histogram({ name, help, labelNames, buckets, registers: [this.registry] });
  }

  /** `aggregator`: how the primary combines the values of its workers. */
  #gauge(name: string, help: string, aggregator: 'sum' | 'average' | 'max' = 'sum'): Gauge {
    return new Gauge({ name, help, aggregator, registers: [this.registry] });
  }
}
