import type { KeyReload } from '../kernel/key-reload.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

/** Counts a reading of the key file. */
export function countReload(metrics: Metrics, { ok }: KeyReload): void {
  metrics.keyReloads.inc({ result: ok ? 'ok' : 'refused' });
}

/** Logs a reading of the key file. */
export function logReload(logger: Logger, reload: KeyReload): void {
  if (reload.ok) logger.info({ keys: reload.keys }, 'the key file was reloaded');
  else logger.error({ reason: reload.error }, 'the new key file is refused; the old keys stay in force');
}
