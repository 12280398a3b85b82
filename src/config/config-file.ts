import { hash } from 'node:crypto';
import { Followed, messageOf, readBounded } from '../lib/followed.ts';
import { ConfigError, parseConfig } from './load.ts';
import { mergeReload, withVersion } from './reload.ts';
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
  readonly #followed: Followed<Config>;
  /** The configurations in force since the start that identify requests differently. The last one is in force now. */
  #versions: readonly Config[];
  #last: ConfigReload | undefined;

  /** @param config the configuration that the gateway started with */
  constructor(config: Config, options: ConfigFileOptions) {
    const { path, env } = options;
    this.#options = options;
    this.#versions = [config];
    this.#followed = new Followed({
      paths: [path],
      pollMs: POLL_MS,
      read: async () => {
        const bytes = await readBounded(path, MAX_BYTES).catch((error: unknown) => {
          throw new ConfigError(path, [messageOf(error)]);
        });
        return { id: hash('sha256', bytes), load: () => parseConfig(bytes.toString('utf8'), env, path) };
      },
      apply: (loaded, isAsked) => this.#put(loaded, isAsked),
      refused: (error) => {
        // Any other message may quote the file.
        const mistakes =
          error instanceof ConfigError ? error.message.split('\n') : [`${path}: cannot be read`];
        this.#last = { result: 'refused', mistakes };
        options.onReload(this.#last);
      },
    });
  }

  /** Reads the file now, even if it is unchanged. Never rejects. */
  reload(): Promise<void> {
    return this.#followed.reload();
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
    this.#followed.close();
  }

  /** @throws ConfigError if the loaded configuration cannot be put in force */
  #put(loaded: Config, isAsked: boolean): void {
    const { path, apply, onReload } = this.#options;
    const decision = mergeReload(this.#versions, loaded);
    if (decision.kind === 'refused') throw new ConfigError(path, decision.mistakes);
    const { config, changed, needsRestart } = decision;
    if (changed.length > 0) {
      try {
        apply(config);
      } catch {
        throw new ConfigError(path, ['operations: cannot be put in force']);
      }
      this.#versions = withVersion(this.#versions, config);
    }
    const isFirst = this.#last === undefined;
    this.#last = { result: needsRestart.length > 0 ? 'needs_restart' : 'ok', changed, needsRestart };
    // The file is read once after the start, in case that it has changed since it was loaded.
    const isNews = changed.length + needsRestart.length > 0;
    if (isNews || isAsked || !isFirst) onReload(this.#last);
  }
}
