import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

/** Seconds. From a replay in memory to a backend at its time limit. */
const SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
/** Seconds. A store answers within its time limit, half a second by default. */
const STORE_SECONDS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1];

/**
 * Every metric of the gateway, by name. Labels come from bounded sets only: operation names of the configuration,
 * and words of the gateway; never a merchant, a key or a path.
 */
export class Metrics {
  readonly registry = new Registry();

  readonly requests = this.#counter('oncegate_requests_total', 'Requests answered, by how they ended', [
    'operation',
    'outcome',
  ]);
  readonly requestSeconds = this.#histogram(
    'oncegate_request_duration_seconds',
    'From a request’s head to the end of its answer',
    ['operation'],
    SECONDS,
  );
  readonly gatewaySeconds = this.#histogram(
    'oncegate_gateway_duration_seconds',
    'The gateway’s own part of a request: without the backend, and without waiting for another request',
    ['operation'],
    SECONDS,
  );
  readonly upstreamSeconds = this.#histogram(
    'oncegate_upstream_duration_seconds',
    'From sending a request to the backend to its complete answer, or its failure',
    ['operation', 'result'],
    SECONDS,
  );
  readonly storeSeconds = this.#histogram(
    'oncegate_store_duration_seconds',
    'Commands to the idempotency store',
    ['command', 'result'],
    STORE_SECONDS,
  );
  readonly hits = this.#counter(
    'oncegate_idempotency_hits_total',
    'Answers replayed from a completed record',
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
    'Keys in doubt that were resolved, by an operator on the admin port or by a lookup',
    ['as', 'by'],
  );
  readonly unprotected = this.#counter(
    'oncegate_unprotected_total',
    'Requests of an operation that takes a key, sent without one',
    ['operation'],
  );
  readonly stale = this.#counter(
    'oncegate_stale_total',
    'Writes refused because another execution owns the record',
    ['write'],
  );
  readonly sentAgain = this.#counter(
    'oncegate_sent_again_total',
    'Requests in doubt that were sent once more, under inDoubt: retry',
    ['operation'],
  );
  readonly lookups = this.#counter(
    'oncegate_lookups_total',
    'Questions to the backend about keys in doubt, by what they led to',
    ['operation', 'result'],
  );
  readonly leaseLost = this.#counter(
    'oncegate_lease_lost_total',
    'Leases that had lapsed while their owner lived',
    [],
  );
  readonly completeLate = this.#counter(
    'oncegate_complete_late_total',
    'Responses sent before they were stored, because the store did not answer in time',
    ['operation'],
  );
  readonly unreplicated = this.#counter(
    'oncegate_complete_unreplicated_total',
    'Results that had not reached durability.replicas in time',
    [],
  );
  readonly clockSteps = this.#counter(
    'oncegate_store_clock_steps_total',
    'Steps of the clock of Redis’ host, by which records expire',
    [],
  );
  readonly connectionsRefused = this.#counter(
    'oncegate_connections_refused_total',
    'Connections closed at once because limits.connections others were open',
    [],
  );
  readonly inFlight = this.#gauge('oncegate_in_flight', 'Requests that are being answered');
  readonly executing = this.#gauge('oncegate_executing', 'Executions under a key that run now');
  readonly waiting = this.#gauge('oncegate_waiting', 'Duplicates that wait for the first one’s result');
  readonly pendingWrites = this.#gauge(
    'oncegate_pending_writes',
    'Writes to the store that are repeated because it has not answered',
  );
  readonly storeRefuses = this.#gauge(
    'oncegate_store_refuses_writes',
    '1 while the store refuses writes, so that new keys get 503 and replays go on',
    'max',
  );
  readonly slotsInUse = this.#gauge('oncegate_upstream_slots_in_use', 'Connections to the backend in use');
  readonly slotsQueued = this.#gauge(
    'oncegate_upstream_slots_queued',
    'Requests that wait for a connection to the backend',
  );
  readonly streams = this.#gauge('oncegate_streams', 'Passed-through requests and WebSockets that are open');
  readonly keys = this.#gauge('oncegate_secret_keys', 'Secret keys that are loaded', 'average');
  readonly keyReloads = this.#counter('oncegate_key_reloads_total', 'Reloads of the key file', ['result']);

  readonly #reads: (() => void)[] = [];

  constructor() {
    collectDefaultMetrics({ register: this.registry });
    // A series that appears only with its first event hides that event from rate().
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

  /** Series of the declared operations from the start on. */
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

  /** `read` gives a gauge its value whenever the metrics are read. */
  track(gauge: Gauge, read: () => number): void {
    this.#reads.push(() => gauge.set(read()));
  }

  /** Prometheus text format. */
  async text(): Promise<string> {
    for (const read of this.#reads) read();
    return await this.registry.metrics();
  }

  /** What a worker hands to the process that adds the workers up. */
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

  /** `aggregator`: how the workers' values become one. */
  #gauge(name: string, help: string, aggregator: 'sum' | 'average' | 'max' = 'sum'): Gauge {
    return new Gauge({ name, help, aggregator, registers: [this.registry] });
  }
}
