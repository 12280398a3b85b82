import cluster, { type Worker } from 'node:cluster';
import type { AdminSource, Check } from '../admin/application.ts';
import type { Config } from '../config/schema.ts';
import { afterReading, within } from '../kernel/clock.ts';
import type { KeyReload } from '../kernel/context.ts';
import type { MetricsFormat } from '../kernel/metrics-format.ts';
import type { RecordsAnswer, RecordsQuestion } from '../kernel/records.ts';
import { MetricsSum } from './metrics-sum.ts';
import type { FromWorker, Question, ToWorker } from './worker.ts';

const ANSWER_WITHIN_MS = 1000;
/** Listing a page of records takes many commands to the store. */
const RECORDS_WITHIN_MS = 10_000;
/** Warnings may take the whole timeout of the store. */
const WARNINGS_WITHIN_MS = 10_000;
const REPLACE_AFTER_MS = 200;
/** How long a reload waits for the workers. A paused one takes the configuration when it runs again. */
const RELOAD_WITHIN_MS = 5000;
/** The id under which the primary's own metrics are added. Those of workers begin at 1. */
const PRIMARY = 0;
/** A paused worker answers when it runs again. */
const A_DAY_MS = 86_400_000;

export interface PrimaryOptions {
  count: number;
  /** The configurations since the start that a new worker must know, the last one in force. */
  versions(): readonly Config[];
  /** A snapshot of metrics that no worker has. */
  ownMetrics(): object[];
  /** A worker that takes longer for its graceful shutdown is killed. */
  shutdownMs: number;
  log(fields: object, message: string): void;
  /**
   * Called once for each new version of the secret keys, however many workers report it, and once after each
   * {@link Primary.reloadKeys}.
   */
  onReload(reload: KeyReload): void;
}

/** A worker could not start. The message is for the operator. */
export class WorkerFailed extends Error {
  override readonly name = 'WorkerFailed';
  readonly exitCode: number;
  constructor(message: string, exitCode: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** Keeps `count` worker processes running behind one port, and serves the admin port for all of them. */
export class Primary implements Omit<AdminSource, 'configuration'> {
  readonly #options: PrimaryOptions;
  readonly #sum = new MetricsSum();
  readonly #listening = new Set<Worker>();
  /** Workers that follow reloads: those that listen, and those that will soon. */
  readonly #following = new Set<Worker>();
  /** Questions that wait for a worker's answer. */
  readonly #asked = new Map<number, (answer: object) => void>();
  /** Workers that have not confirmed the configuration that they were sent last. */
  readonly #behind = new Map<Worker, Config>();
  #nextId = 1;
  /** The version of the secret keys that was reported last. */
  #reportedKeys: string | undefined;
  #isShuttingDown = false;

  constructor(options: PrimaryOptions) {
    this.#options = options;
    // Each worker accepts its own connections: ADR 12 says what goes wrong if the primary hands them over.
    cluster.schedulingPolicy = cluster.SCHED_NONE;
  }

  /** Resolves to the port when all workers listen. @throws {WorkerFailed} if one cannot start */
  async start(): Promise<number> {
    const ports = await Promise.all(Array.from({ length: this.#options.count }, () => this.#fork()));
    return ports[0] as number;
  }

  async metrics(format?: MetricsFormat): Promise<string> {
    await Promise.all(
      [...this.#listening].map(async (worker) => {
        const metrics = await this.#ask(worker, { what: 'metrics' });
        if (metrics) this.#sum.take(worker.id, metrics as object[]);
      }),
    );
    this.#sum.take(PRIMARY, this.#options.ownMetrics());
    return await this.#sum.text(format);
  }

  /** A check is ok if it is ok in every worker. */
  async checks(): Promise<Check[]> {
    const answers = await Promise.all(
      [...this.#listening].map((worker) => this.#ask(worker, { what: 'checks' })),
    );
    const answered = answers.filter((answer) => answer !== undefined) as Check[][];
    const { count } = this.#options;
    const all: Check = {
      name: 'workers',
      ok: answered.length === count,
      detail: `${answered.length} of ${count} answer`,
      ...(this.#behind.size > 0 && {
        warnings: [`${this.#behind.size} of ${count} have not confirmed the new configuration`],
      }),
    };
    return [...worst(answered), all];
  }

  /**
   * One worker answers for all, because they share the store. If it does not answer, another worker is asked, except about a
   * resolution, which may have been written already.
   *
   * @throws {Error} if it failed
   */
  async records(question: RecordsQuestion): Promise<RecordsAnswer> {
    for (const worker of this.#listening) {
      const answer = await this.#ask(worker, { what: 'records', question }, RECORDS_WITHIN_MS);
      if (answer && 'failure' in answer) throw new Error(`a worker failed: ${answer.failure}`);
      if (answer) return answer as RecordsAnswer;
      if (question.kind === 'resolve') break;
    }
    return { kind: 'refused', why: 'unavailable', detail: 'No worker answered. Read the record again.' };
  }

  /** One worker answers for all, because they have the same configuration. */
  async warnings(): Promise<string[]> {
    for (const worker of this.#listening) {
      const answer = await this.#ask(worker, { what: 'warnings' }, WARNINGS_WITHIN_MS);
      if (answer) return answer as string[];
    }
    return [];
  }

  /** All workers read the secret keys again. A worker that is still starting reads them anyway. */
  reloadKeys(): void {
    this.#reportedKeys = undefined;
    for (const worker of this.#listening) if (worker.isConnected()) send(worker, { kind: 'reload_keys' });
  }

  /** Puts a configuration in force in all workers. Resolves when they have confirmed it, or after five seconds. */
  async reload(config: Config): Promise<void> {
    const confirmed = [...this.#following].map((worker) => this.#give(worker, config));
    await within(Promise.all(confirmed), RELOAD_WITHIN_MS);
    for (const { process } of this.#behind.keys())
      this.#options.log({ worker: process.pid }, 'a worker has not confirmed the new configuration');
  }

  /** Counts a reading of the configuration file, in the metrics of one worker. */
  countConfigReload(result: string): void {
    const worker = [...this.#listening].find((one) => one.isConnected());
    if (worker) send(worker, { kind: 'count_config_reload', result });
  }

  /** Messages arrive in order, so the worker ends with the configuration that it was sent last. */
  async #give(worker: Worker, config: Config): Promise<void> {
    this.#behind.set(worker, config);
    const exited = Promise.withResolvers<undefined>();
    const onExit = () => exited.resolve(undefined);
    worker.once('exit', onExit);
    const asked = this.#ask(worker, { what: 'reload', config }, A_DAY_MS);
    const answer = await Promise.race([asked, exited.promise]);
    worker.off('exit', onExit);
    if (answer && 'failure' in answer) {
      const fields = { worker: worker.process.pid, reason: answer.failure };
      this.#options.log(fields, 'a worker cannot use the new configuration');
      return;
    }
    if (this.#behind.get(worker) === config) this.#behind.delete(worker);
  }

  /** Shuts all workers down gracefully, and kills those that take too long. */
  async shutdown(): Promise<void> {
    this.#isShuttingDown = true;
    await Promise.all(
      runningWorkers().map(async (worker) => {
        const exited = new Promise<void>((resolve) => worker.once('exit', () => resolve()));
        const timer = setTimeout(() => worker.process.kill('SIGKILL'), this.#options.shutdownMs);
        if (worker.isConnected()) send(worker, { kind: 'shut_down' });
        if (!worker.isDead()) await exited;
        clearTimeout(timer);
      }),
    );
  }

  /** Kills all workers. */
  kill(): void {
    this.#isShuttingDown = true;
    for (const worker of runningWorkers()) worker.process.kill('SIGKILL');
  }

  /** Starts a worker, and replaces it when it exits. Resolves to the port when the worker listens. */
  #fork(): Promise<number> {
    const worker = cluster.fork();
    return new Promise((resolve, reject) => {
      worker.on('message', (message: FromWorker) => {
        if (message.kind === 'ask_configuration') {
          send(worker, { kind: 'configure', versions: this.#options.versions() });
          // In the same turn, so that a later version is sent to it.
          if (message.follows) this.#following.add(worker);
        } else if (message.kind === 'listening') {
          this.#listening.add(worker);
          resolve(message.port);
          // The worker receives messages only from now on, so it missed a shutdown that began while it started.
          if (this.#isShuttingDown) send(worker, { kind: 'shut_down' });
        } else if (message.kind === 'failed') reject(new WorkerFailed(message.message, message.exitCode));
        else if (message.kind === 'keys_reloaded') this.#report(message.reload);
        else if (message.kind === 'metrics') this.#sum.take(worker.id, message.metrics);
        else this.#asked.get(message.id)?.(message.answer);
      });
      worker.once('exit', (code, signal) => {
        reject(new WorkerFailed(`a worker ended with ${signal ?? code} while it started`, 1));
        this.#listening.delete(worker);
        this.#following.delete(worker);
        void this.#sum.retire(worker.id);
        if (!this.#isShuttingDown) this.#replace(worker, signal ?? code);
      });
    });
  }

  /** Every worker reads the secret keys and reports that. Only the first report of a version is passed on. */
  #report(reload: KeyReload): void {
    if (reload.version === this.#reportedKeys) return;
    this.#reportedKeys = reload.version;
    this.#options.onReload(reload);
  }

  #replace(worker: Worker, reason: string | number): void {
    this.#options.log({ worker: worker.process.pid, reason }, 'a worker died and is replaced');
    setTimeout(() => {
      if (this.#isShuttingDown) return;
      // A worker that cannot start exits, and its exit starts the next attempt.
      this.#fork().catch(({ message }: Error) =>
        this.#options.log({ reason: message }, 'a worker cannot start'),
      );
    }, REPLACE_AFTER_MS);
  }

  /** Undefined if the worker does not answer in time, so that a paused worker does not delay the answers of the others. */
  #ask(worker: Worker, asked: Question, withinMs = ANSWER_WITHIN_MS): Promise<object | undefined> {
    const id = this.#nextId++;
    return new Promise((resolve) => {
      const finish = (answer?: object) => {
        clearTimeout(timer);
        this.#asked.delete(id);
        resolve(answer);
      };
      const timer = setTimeout(() => afterReading(finish), withinMs);
      this.#asked.set(id, finish);
      if (worker.isConnected()) send(worker, { kind: 'ask', id, ...asked });
      else finish();
    });
  }
}

const runningWorkers = (): Worker[] =>
  Object.values(cluster.workers ?? {}).filter((worker) => worker !== undefined);

function send(worker: Worker, message: ToWorker): void {
  // A worker may exit between the check and the message.
  worker.send(message, () => {});
}

/** For each check, the first answer that is not ok, or else the first answer. */
function worst(answers: readonly Check[][]): Check[] {
  const [first = []] = answers;
  return first.map((check) => {
    const same = answers.map((checks) => checks.find(({ name }) => name === check.name) ?? check);
    return same.find(({ ok }) => !ok) ?? check;
  });
}
