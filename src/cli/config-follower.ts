import { statSync } from 'node:fs';
import type { Check } from '../admin/source.ts';
import { ConfigFile, type ConfigReload } from '../config/config-file.ts';
import type { Config } from '../config/schema.ts';
import type { Gateway } from '../gateway/gateway.ts';
import type { Logger } from '../telemetry/logger.ts';

/**
 * Follows the changes of the configuration file, puts them in force in the gateway, and logs and counts them.
 *
 * @returns undefined if there is no file, or none that can be read again
 */
export function followConfigFile(
  path: string | undefined,
  config: Config,
  { env, logger }: { env: NodeJS.ProcessEnv; logger: Logger },
  gateway: Gateway,
): ConfigFile | undefined {
  // A pipe, such as `--config <(command)`, cannot be read again.
  if (path === undefined || !statSync(path, { throwIfNoEntry: false })?.isFile()) return undefined;
  const onReload = async (reload: ConfigReload) => {
    gateway.metrics.configReloads.inc({ result: reload.result });
    if (reload.result === 'refused') {
      const { mistakes } = reload;
      logger.error({ mistakes }, 'the new configuration is refused; the old one stays in force');
      return;
    }
    logger.info({ changed: reload.changed }, 'the configuration was reloaded');
    if (reload.needsRestart.length > 0)
      logger.warn({ options: reload.needsRestart }, 'the changed configuration needs a restart');
    // New operations may have a dangerous policy, or lack a name that a secret key has as a scope.
    if (reload.changed.includes('operations'))
      for (const warning of await gateway.readiness.warnings().catch(() => []))
        logger.warn({ warning }, 'something needs attention');
  };
  const apply = (changed: Config) => gateway.reload(changed);
  return new ConfigFile(config, { path, env, apply, onReload: (reload) => void onReload(reload) });
}

/** For /readyz. Like the warnings of the policies, it is shown only if there is something to say. */
export function configChecks(configFile: ConfigFile | undefined): Check[] {
  const warnings = configFile?.warnings() ?? [];
  const detail = 'the file differs from the configuration in force';
  return warnings.length > 0 ? [{ name: 'configuration', ok: true, detail, warnings }] : [];
}
