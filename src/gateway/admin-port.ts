import type { Server } from 'node:http';
import { type AdminSource, createAdmin } from '../admin/application.ts';
import { createAdminServer } from '../admin/server.ts';
import type { ConfigFile } from '../config/config-file.ts';
import { maskedSections } from '../config/masked.ts';
import { RELOADED } from '../config/reload.ts';
import { type Config, workersOf } from '../config/schema.ts';
import { thisBuild } from '../kernel/build.ts';
import type { Clock } from '../kernel/clock.ts';
import { AdminLog } from '../observability/admin-log.ts';
import type { Logger } from '../observability/logger.ts';
import { listen } from './http-server.ts';

export interface AdminPortTools {
  clock: Clock;
  logger: Logger;
  /** If the gateway follows its file, the console shows the version that is in force. */
  configFile?: ConfigFile | undefined;
}

/** Opens the admin port of a gateway, or of the primary for all its workers. @throws the operating system's error */
export async function openAdminPort(
  config: Config,
  source: Omit<AdminSource, 'configuration'>,
  { clock, logger, configFile }: AdminPortTools,
): Promise<{ server: Server; port: number }> {
  const startedAtMs = clock.wallMs();
  const configuration: AdminSource['configuration'] = () => ({
    file: configFile?.path ?? null,
    inForceSince: new Date(configFile?.changedAtMs ?? startedAtMs).toISOString(),
    sections: maskedSections(configFile?.versions.at(-1) ?? config).map(({ name, yaml }) => ({
      ...{ name, yaml },
      takesEffect: RELOADED.some((reloaded) => reloaded === name) ? 'reload' : 'restart',
    })),
  });
  const { mode, countDoubtsEveryMs } = config.idempotency;
  const about = { build: thisBuild(), workers: workersOf(config), mode, store: config.store.kind };
  const observer = new AdminLog(logger);
  const tools = { options: config.admin, clock, about, countDoubtsEveryMs, observer };
  const server = createAdminServer(createAdmin({ ...source, configuration }, tools));
  return { server, port: await listen(server, config.admin.host, config.admin.port) };
}
