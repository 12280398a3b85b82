import { createServer, type Server } from 'node:http';
import { Writable } from 'node:stream';
import { pino } from 'pino';
import { type AdminSource, createAdmin } from '../../src/admin/application.ts';
import { listen } from '../../src/cli/serve.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import { createSandbox, type Sandbox, type SandboxOptions } from '../../src/sandbox/sandbox.ts';
import { type ConfigInput, type MoreConfig, parsedConfig, temporaryFolder, testConfig } from './config.ts';

/** A gateway in this process, over real sockets. */
export interface TestGateway {
  gateway: Gateway;
  url: string;
  port: number;
  adminUrl: string;
  /** The log's lines so far, parsed. */
  log: Record<string, unknown>[];
  /** Shuts the gateway down gracefully. */
  shutdown(): Promise<void>;
}

export async function openGateway(input: ConfigInput): Promise<TestGateway> {
  const config = parsedConfig(input);
  const log: Record<string, unknown>[] = [];
  const sink = new Writable({
    write(chunk: Buffer, _encoding, done) {
      for (const line of chunk.toString().split('\n').filter(Boolean)) log.push(JSON.parse(line));
      done();
    },
  });
  const gateway = await Gateway.open(config, { clock: systemClock, logger: pino({ level: 'debug' }, sink) });
  const port = await listen(gateway.server, '127.0.0.1', 0);
  const source: AdminSource = {
    metrics: () => gateway.metrics.text(),
    checks: () => gateway.checks(),
    records: (question) => gateway.desk.answer(question),
  };
  const admin: Server = createServer(createAdmin(source, config.admin.token));
  const adminPort = await listen(admin, '127.0.0.1', 0);
  const shutdown = async () => {
    await gateway.shutdown();
    admin.closeAllConnections();
    await new Promise((resolve) => admin.close(resolve));
  };
  return {
    gateway,
    port,
    url: `http://127.0.0.1:${port}`,
    adminUrl: `http://127.0.0.1:${adminPort}`,
    log,
    shutdown,
  };
}

/** Sandbox and gateway together. Close it in afterAll or afterEach. */
export interface Stack extends TestGateway {
  sandbox: Sandbox;
  /** The configuration, for a second gateway on the same store. */
  config: ConfigInput;
  /** Ends gateway and sandbox at once. */
  close(): Promise<void>;
}

export async function openStack(more: MoreConfig = {}, sandboxOptions: SandboxOptions = {}): Promise<Stack> {
  const sandbox = await createSandbox({ port: 0, ...sandboxOptions });
  try {
    const config = testConfig(temporaryFolder(), sandbox.url, more);
    const opened = await openGateway(config);
    const close = async () => {
      await opened.shutdown();
      await sandbox.close();
    };
    return { ...opened, sandbox, config, close };
  } catch (error) {
    await sandbox.close();
    throw error;
  }
}

/** A gateway in front of a backend other than the sandbox, while `use` runs. */
export async function inFrontOf<T>(
  url: string,
  use: (behind: Stack) => Promise<T>,
  times: { connectTimeoutMs?: number; responseTimeoutMs?: number } = { connectTimeoutMs: 5000 },
): Promise<T> {
  const behind = await openStack({ upstream: { url, ...times } });
  try {
    return await use(behind);
  } finally {
    await behind.close();
  }
}
