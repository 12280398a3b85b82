import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

/** Tells of each reading of the key file. */
export function keyObserver(metrics: Metrics, logger: Logger) {
  return (reload: { ok: true; keys: number } | { ok: false; error: string }): void => {
    metrics.keyReloads.inc({ result: reload.ok ? 'ok' : 'refused' });
    if (reload.ok) logger.info({ keys: reload.keys }, 'the key file was reloaded');
    else logger.error({ reason: reload.error }, 'the new key file is refused; the old keys stay in force');
  };
}
