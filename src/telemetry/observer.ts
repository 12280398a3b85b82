import type { KeyReload } from '../lib/context.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

/**
 * Turns events of other modules into metrics and log lines. (access.ts writes the line and the metrics that every request has.)
 */
export class Observer {
  readonly #metrics: Metrics;
  readonly #logger: Logger;

  constructor(metrics: Metrics, logger: Logger) {
    this.#metrics = metrics;
    this.#logger = logger;
  }

  // Secret keys that the backend is asked for.

  keyProbed(result: string): void {
    this.#metrics.keyProbes.inc({ result });
  }

  keysUnchecked(reason: string): void {
    this.#logger.warn({ reason }, 'the backend cannot check a secret key');
  }

  keysReloaded(reload: KeyReload): void {
    this.#metrics.keyReloads.inc({ result: reload.ok ? 'ok' : 'refused' });
    logReload(this.#logger, reload);
  }

  merchantChanged(from: string, to: string): void {
    this.#logger.error(
      { from, to },
      'the backend names another merchant for a secret key than before: the key is refused',
    );
  }

  /** Redis stopped or began to count the requests of merchants for all gateways. */
  limitsShared(isShared: boolean, reason = ''): void {
    if (isShared) this.#logger.info('the limits of merchants are shared again');
    else this.#logger.warn({ reason }, 'the limits of merchants are not shared: Redis does not answer');
  }
}

/** Not a method of {@link Observer}: `bearerAuth` of the package has no metrics. */
export function logReload(logger: Logger, reload: KeyReload): void {
  if (reload.ok) logger.info({ keys: reload.keys }, 'the secret keys were reloaded');
  else
    logger.error({ reason: reload.error }, 'the secret keys cannot be reloaded; the old ones stay in force');
}
