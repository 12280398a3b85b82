import { hash } from 'node:crypto';
import { ConfigError, parseConfig } from '../config/load.ts';
import { mergeReload, withVersion } from '../config/reload.ts';
import type { Config } from '../config/schema.ts';
import type { RunningGateway } from '../gateway/gateway.ts';
import { messageOf, readBounded } from '../lib/files.ts';
import { Followed } from '../lib/followed.ts';

/** Largest accepted file: 1 MiB. A larger one would hold up requests while it is parsed. */
const MAX_BYTES = 1024 * 1024;

const POLL_MS = 500;
/** A version that could not be read for lack of file descriptors or memory must not stay unread. */
const RETRY_MS = 10_000;

/**
 * The configuration file of a running gateway, which is read again when it changes. Of an accepted version, `operations`,
 * `limits`, `log` and `metrics` are put in force. Each reading is logged and counted.
 */
export class ConfigFile {
  readonly #path: string;
  readonly #gateway: RunningGateway;
  readonly #followed: Followed<Config>;
  /** The configurations in force since the start that identify requests differently. The last one is in force now. */
  #versions: readonly Config[];
  #wasRead = false;
  #warnings: readonly string[] = [];

  /** @param config the configuration that the gateway started with */
  constructor(path: string, config: Config, gateway: RunningGateway, env: NodeJS.ProcessEnv) {
    this.#path = path;
    this.#versions = [config];
    this.#gateway = gateway;
    this.#followed = new Followed({
      paths: [path],
      ...{ pollMs: POLL_MS, retryMs: RETRY_MS },
      read: async () => {
        const bytes = await readBounded(path, MAX_BYTES).catch((error: unknown) => {
          throw new ConfigError(path, [messageOf(error)]);
        });
        return { id: hash('sha256', bytes), load: () => parseConfig(bytes.toString('utf8'), env, path) };
      },
      apply: (loaded, isAsked) => this.#putInForce(loaded, isAsked),
      refused: (error) => this.#refused(error),
      // The alert lasts as long as the file is refused, and the log has one line.
      refusedAgain: () => gateway.emit('configReloads', { result: 'refused' }),
    });
  }

  /** Reads the file now, even if it is unchanged. Never rejects. */
  reload(): Promise<void> {
    return this.#followed.reload();
  }

  /** What differs between the file and the configuration in force. Without values: everyone may read it. */
  get warnings(): readonly string[] {
    return this.#warnings;
  }

  close(): void {
    this.#followed.close();
  }

  /** @throws ConfigError if the loaded configuration cannot be put in force */
  async #putInForce(loaded: Config, isAsked: boolean): Promise<void> {
    const decision = mergeReload(this.#versions, loaded);
    if (decision.kind === 'refused') throw new ConfigError(this.#path, decision.mistakes);
    const { config, changed, needsRestart } = decision;
    if (changed.length > 0) {
      try {
        await this.#gateway.reload(config);
      } catch {
        throw new ConfigError(this.#path, [`${changed.join(', ')}: cannot be put in force`]);
      }
      this.#versions = withVersion(this.#versions, config);
    }
    this.#warnings = needsRestart.length > 0 ? [`needs a restart: ${needsRestart.join(', ')}`] : [];
    // The file is read once after the start, in case that it has changed since it was loaded.
    const isNews = this.#wasRead || isAsked || changed.length + needsRestart.length > 0;
    this.#wasRead = true;
    if (isNews) void this.#accepted(changed, needsRestart);
  }

  async #accepted(changed: string[], needsRestart: string[]): Promise<void> {
    const { emit, readiness } = this.#gateway;
    emit('config_reloaded', { changed, result: needsRestart.length > 0 ? 'needs_restart' : 'ok' });
    if (needsRestart.length > 0) emit('config_needs_restart', { options: needsRestart });
    // New operations may have a dangerous policy, or lack a name that a secret key has as a scope.
    if (changed.includes('operations'))
      for (const warning of await readiness.warnings().catch(() => [])) emit('attention', { warning });
  }

  #refused(error: unknown): void {
    // Any other message may quote the file.
    const mistakes =
      error instanceof ConfigError ? error.message.split('\n') : [`${this.#path}: cannot be read`];
    const count = `${mistakes.length} ${mistakes.length === 1 ? 'mistake' : 'mistakes'}`;
    this.#warnings = [
      `the newest version of the file was refused (${count}, in the log); an earlier version is in force`,
    ];
    this.#wasRead = true;
    this.#gateway.emit('config_refused', { mistakes });
  }
}
