import cluster, { type Worker } from 'node:cluster';
import type { AdminSource, Check, RecordsAnswer, RecordsQuestion } from '../admin/application.ts';
import type { KeyReload } from '../kernel/key-reload.ts';
import type { FromWorker, Question, ToWorker } from './messages.ts';
import { MetricsSum } from './metrics-sum.ts';

const ANSWER_WITHIN_MS = 1000;
/** A page of records is many commands to the store. */
const RECORDS_WITHIN_MS = 10_000;
/** A store may take its whole timeout. */
const WARNINGS_WITHIN_MS = 10_000;
const REPLACE_AFTER_MS = 200;

export interface PrimaryOptions {
  count: number;
  /** Time that a worker has for its own shutdown before it is killed. */
  shutdownMs: number;
  log(fields: object, message: string): void;
  /** Called once for each new content of the key file, and for each {@link Primary.reloadKeys}. */
  onReload(reload: KeyReload): void;
}

/** A worker could not start; the message is for the operator. */
export class WorkerFailed extends Error {
  override readonly name = 'WorkerFailed';
  readonly exitCode: number;
  constructor(message: string, exitCode: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** Keeps `count` worker processes alive behind one port, and speaks for all of them on the admin port. */
export class Primary implements AdminSource {
  readonly #options: PrimaryOptions;
  readonly #sum = new MetricsSum();
  readonly #listening = new Set<Worker>();
  readonly #asked = new Map<number, (answer: object) => void>();
  #nextId = 1;
  /** Of the key file as it was reported last. */
  #keysVersion: string | undefined;
  #ending = false;

  constructor(options: PrimaryOptions) {
    this.#options = options;
    // Each worker accepts for itself. Where the primary accepts for them, as is node:cluster's default, a connection is
    // forgotten, and its client hangs, whenever a worker ends or is killed while one is handed over to it.
    cluster.schedulingPolicy = cluster.SCHED_NONE;
  }

  /** Resolves to the port when all workers listen. @throws {WorkerFailed} when one cannot */
  async start(): Promise<number> {
    const ports = await Promise.all(Array.from({ length: this.#options.count }, () => this.#fork()));
    return ports[0] as number;
  }

  async metrics(): Promise<string> {
    await Promise.all(
      [...this.#listening].map(async (worker) => {
        const metrics = await this.#ask(worker, { what: 'metrics' });
        if (metrics) this.#sum.take(worker.id, metrics as object[]);
      }),
    );
    return await this.#sum.text();
  }

  /** A check holds when it holds in every worker. */
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
    };
    return [...worst(answered), all];
  }

  /** Any worker's store will do. A resolution that one does not answer is not handed to another: it may be written. */
  async records(question: RecordsQuestion): Promise<RecordsAnswer> {
    for (const worker of this.#listening) {
      const answer = await this.#ask(worker, { what: 'records', question }, RECORDS_WITHIN_MS);
      if (answer) return answer as RecordsAnswer;
      if (question.kind === 'resolve') break;
    }
    return { kind: 'refused', why: 'unavailable', detail: 'No worker answered: look again.' };
  }

  /** All workers have the same configuration, so one of them answers for all. */
  async warnings(): Promise<string[]> {
    for (const worker of this.#listening) {
      const answer = await this.#ask(worker, { what: 'warnings' }, WARNINGS_WITHIN_MS);
      if (answer) return answer as string[];
    }
    return [];
  }

  /** Makes all workers read the secret keys at once. One that still starts reads them anyway. */
  reloadKeys(): void {
    this.#keysVersion = undefined;
    for (const worker of this.#listening) if (worker.isConnected()) tell(worker, { kind: 'reload_keys' });
  }

  /** Ends all workers gracefully, and those that do not end in time by force. */
  async shutdown(): Promise<void> {
    this.#ending = true;
    await Promise.all(
      living().map(async (worker) => {
        const gone = new Promise<void>((resolve) => worker.once('exit', () => resolve()));
        const timer = setTimeout(() => worker.process.kill('SIGKILL'), this.#options.shutdownMs);
        if (worker.isConnected()) tell(worker, { kind: 'shut_down' });
        if (!worker.isDead()) await gone;
        clearTimeout(timer);
      }),
    );
  }

  /** Ends all workers at once. */
  kill(): void {
    this.#ending = true;
    for (const worker of living()) worker.process.kill('SIGKILL');
  }

  /** Resolves to the port. A worker that dies later is replaced. */
  #fork(): Promise<number> {
    const worker = cluster.fork();
    return new Promise((resolve, reject) => {
      worker.on('message', (message: FromWorker) => {
        if (message.kind === 'listening') {
          this.#listening.add(worker);
          resolve(message.port);
          // A worker that starts hears no messages.
          if (this.#ending) tell(worker, { kind: 'shut_down' });
        } else if (message.kind === 'failed') reject(new WorkerFailed(message.message, message.exitCode));
        else if (message.kind === 'keys_reloaded') this.#report(message.reload);
        else if (message.kind === 'metrics') this.#sum.take(worker.id, message.metrics);
        else this.#asked.get(message.id)?.(message.answer);
      });
      worker.once('exit', (code, signal) => {
        reject(new WorkerFailed(`a worker ended with ${signal ?? code} while it started`, 1));
        this.#listening.delete(worker);
        void this.#sum.retire(worker.id);
        if (!this.#ending) this.#replace(worker, signal ?? code);
      });
    });
  }

  /** Each worker reads the key file for itself, and one line is enough. */
  #report(reload: KeyReload): void {
    if (reload.version === this.#keysVersion) return;
    this.#keysVersion = reload.version;
    this.#options.onReload(reload);
  }

  #replace(worker: Worker, reason: string | number): void {
    this.#options.log({ worker: worker.process.pid, reason }, 'a worker died and is replaced');
    setTimeout(() => {
      if (this.#ending) return;
      // A worker that cannot start exits, and is replaced again.
      this.#fork().catch(({ message }: Error) =>
        this.#options.log({ reason: message }, 'a worker cannot start'),
      );
    }, REPLACE_AFTER_MS);
  }

  /** Undefined when the worker does not answer in time: a worker that is stopped must not hold up the others. */
  #ask(worker: Worker, asked: Question, withinMs = ANSWER_WITHIN_MS): Promise<object | undefined> {
    const id = this.#nextId++;
    return new Promise((resolve) => {
      const end = (answer?: object) => {
        clearTimeout(timer);
        this.#asked.delete(id);
        resolve(answer);
      };
      const timer = setTimeout(end, withinMs);
      this.#asked.set(id, end);
      if (worker.isConnected()) tell(worker, { kind: 'ask', id, ...asked });
      else end();
    });
  }
}

const living = (): Worker[] => Object.values(cluster.workers ?? {}).filter((worker) => worker !== undefined);

function tell(worker: Worker, message: ToWorker): void {
  // A worker may exit between the check and the message.
  worker.send(message, () => {});
}

/** Of each check the first that fails, or else the first. */
function worst(answers: readonly Check[][]): Check[] {
  const [first = []] = answers;
  return first.map((check) => {
    const same = answers.map((checks) => checks.find(({ name }) => name === check.name) ?? check);
    return same.find(({ ok }) => !ok) ?? check;
  });
}
