import { hash } from 'node:crypto';
import { FileWatch, oneAtATime, readBounded } from '../lib/watched-file.ts';
import { ConfigError, parseConfig } from './load.ts';
import { mergeReload, type ReloadDecision, withVersion } from './reload.ts';
import type { Config } from './schema.ts';

/** Largest accepted file: 1 MiB. A larger one would hold up requests while it is parsed. */
const MAX_BYTES = 1024 * 1024;

const POLL_MS = 500;

/** A reading of the configuration file, for the log and the metrics. `refused`: the old configuration stays in force. */
export type ConfigReload =
  | { result: 'ok' | 'needs_restart'; changed: string[]; needsRestart: string[] }
  | { result: 'refused'; mistakes: string[] };

export interface ConfigFileOptions {
  path: string;
  env: NodeJS.ProcessEnv;
  /** Puts a configuration in force. Called before `onReload`, and only if something has changed. */
  apply(config: Config): void;
  /** Called once for each change of the file and for each {@link ConfigFile.reload}. */
  onReload(reload: ConfigReload): void;
}

/**
 * The configuration file of a running gateway, which is read again when it changes. Of an accepted version, `operations`,
 * `limits`, `log` and `metrics` are put in force.
 */
export class ConfigFile {
  readonly #options: ConfigFileOptions;
  readonly #watch: FileWatch;
  /** The configurations in force since the start that identify requests differently. The last one is in force now. */
  #versions: readonly Config[];
  #digest: string | undefined;
  #last: ConfigReload | undefined;
  readonly #readSerially = oneAtATime((options?: { evenUnchanged: boolean }) => this.#read(options));

  /** @param config the configuration that the gateway started with */
  constructor(config: Config, options: ConfigFileOptions) {
    this.#options = options;
    this.#versions = [config];
    this.#watch = new FileWatch(options.path, POLL_MS, () => this.#readSerially());
  }

  /** Reads the file now, even if it is unchanged. Never rejects. */
  async reload(): Promise<void> {
    await this.#readSerially({ evenUnchanged: true });
  }

  /** What differs between the file and the configuration in force. Without values: everyone may read it. */
  warnings(): string[] {
    const last = this.#last;
    if (last?.result === 'refused')
      return [
        `the newest version of the file was refused (${last.mistakes.length} ${last.mistakes.length === 1 ? 'mistake' : 'mistakes'}, in the log); an earlier version is in force`,
      ];
    return last?.result === 'needs_restart' ? [`needs a restart: ${last.needsRestart.join(', ')}`] : [];
  }

  close(): void {
    this.#watch.close();
  }

  async #read({ evenUnchanged } = { evenUnchanged: false }): Promise<void> {
    const { path, onReload } = this.#options;
    const read = await readBounded(path, MAX_BYTES).catch((error: Error) => error);
    const digest = read instanceof Error ? read.message : hash('sha256', read);
    if (digest === this.#digest && !evenUnchanged) return;
    const isFirst = this.#digest === undefined;
    this.#digest = digest;
    const reload = this.#put(this.#decide(read));
    this.#last = reload;
    // The watch reads the file once after the start, in case that it has changed since it was loaded.
    const isNews = reload.result === 'refused' || reload.changed.length + reload.needsRestart.length > 0;
    if (isNews || evenUnchanged || !isFirst) onReload(reload);
  }

  #decide(read: Buffer | Error): ReloadDecision {
    const { path, env } = this.#options;
    if (read instanceof Error) return { kind: 'refused', mistakes: [`${path}: ${read.message}`] };
    try {
      return mergeReload(this.#versions, parseConfig(read.toString('utf8'), env, path));
    } catch (error) {
      // Any other message may quote the file.
      const mistakes = error instanceof ConfigError ? error.message.split('\n') : [`${path}: cannot be read`];
      return { kind: 'refused', mistakes };
    }
  }

  #put(decision: ReloadDecision): ConfigReload {
    if (decision.kind === 'refused') return { result: 'refused', mistakes: decision.mistakes };
    const { config, changed, needsRestart: missing } = decision;
    if (changed.length > 0) {
      try {
        this.#options.apply(config);
      } catch {
        return { result: 'refused', mistakes: ['operations: cannot be put in force'] };
      }
      this.#versions = withVersion(this.#versions, config);
    }
    const result = missing.length > 0 ? 'needs_restart' : 'ok';
    return { result, changed, needsRestart: missing };
  }
}
