import { createAdmin } from '../admin/application.ts';
import { OverviewSource } from '../admin/console/overview.ts';
import { Sessions } from '../admin/console/sessions.ts';
import { createAdminServer } from '../admin/server.ts';
import type { AdminSource } from '../admin/source.ts';
import type { Config } from '../config/schema.ts';
import type { Clock } from '../lib/clock.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';
import { listen } from './http-server.ts';

/** What a gateway shows on its admin port. */
type AdminPortParts = Omit<AdminSource, 'overview'> & { metrics: AllMetrics; emit: Emit };

/** Opens the admin port of a gateway. @throws the operating system's error */
export async function openAdminPort(
  config: Config,
  parts: AdminPortParts,
  clock: Clock,
): Promise<{ port: number; sessions: Sessions; close(): Promise<void> }> {
  const { metrics, readiness, desk, emit } = parts;
  const checks = () => readiness.checks();
  const overview = new OverviewSource({ ...config.idempotency, metrics, checks, clock });
  const sessions = new Sessions(clock);
  const tools = { options: config.admin, clock, emit, sessions };
  const server = createAdminServer(createAdmin({ metrics, readiness, desk, overview }, tools));
  const port = await listen(server, config.admin.host, config.admin.port);
  overview.begin();
  server.once('close', () => overview.end());
  const close = async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  return { port, sessions, close };
}
