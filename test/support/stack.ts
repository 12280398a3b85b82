import type { IncomingMessage } from 'node:http';
import { afterAll, expect, onTestFinished } from 'vitest';
import { openAdminPort } from '../../src/gateway/admin-port.ts';
import { RunningGateway } from '../../src/gateway/gateway.ts';
import { listen } from '../../src/gateway/http-server.ts';
import { type Clock, systemClock } from '../../src/lib/clock.ts';
import { createSandbox, type Sandbox, type SandboxOptions } from '../../src/sandbox/create-sandbox.ts';
import { serializers } from '../../src/telemetry/logger.ts';
import { atEndOfFile } from './at-end-of-file.ts';
import { send, withdraw } from './client.ts';
import { type ConfigInput, type MoreConfig, parsedConfig, temporaryFolder, testConfig } from './config.ts';
import { keptLog } from './log-lines.ts';
import { until } from './until.ts';
import { echoingWebSockets } from './web-sockets.ts';

/** A gateway in this process, over real sockets. */
export interface TestGateway {
  gateway: RunningGateway;
  url: string;
  port: number;
  adminUrl: string;
  /** The log's lines so far, parsed. */
  log: Record<string, unknown>[];
  /** Shuts the gateway down gracefully. */
  shutdown(): Promise<void>;
}

export async function openGateway(input: ConfigInput, clock: Clock = systemClock): Promise<TestGateway> {
  const config = parsedConfig(input);
  const { log, logger } = keptLog({ serializers });
  const tools = { clock, logger };
  const gateway = await RunningGateway.open(config, tools);
  const port = await listen(gateway.server, '127.0.0.1', 0);
  const admin = await openAdminPort({ ...config, admin: { ...config.admin, port: 0 } }, gateway, clock);
  const shutdown = async () => {
    await gateway.shutdown();
    await admin.close();
  };
  return {
    gateway,
    port,
    url: `${config.listen.tls ? 'https' : 'http'}://127.0.0.1:${port}`,
    adminUrl: `http://127.0.0.1:${admin.port}`,
    log,
    shutdown,
  };
}

/** Sandbox and gateway together. Close it in afterAll or afterEach. */
export interface Stack extends TestGateway {
  sandbox: Sandbox;
  /** The handshakes of WebSockets that the sandbox got. It sends every message back. */
  handshakes: IncomingMessage[];
  /** The configuration, for a second gateway on the same store. */
  config: ConfigInput;
  /** Ends gateway and sandbox at once. */
  close(): Promise<void>;
}

export async function openStack(
  more: MoreConfig = {},
  sandboxOptions: SandboxOptions = {},
  clock?: Clock,
): Promise<Stack> {
  const handshakes: IncomingMessage[] = [];
  const onUpgrade = echoingWebSockets(handshakes);
  const sandbox = await createSandbox({ port: 0, onUpgrade, ...sandboxOptions });
  try {
    const config = testConfig(temporaryFolder(), sandbox.url, more);
    const opened = await openGateway(config, clock);
    const close = async () => {
      await opened.shutdown();
      await sandbox.close();
    };
    return { ...opened, sandbox, handshakes, config, close };
  } catch (error) {
    await sandbox.close();
    throw error;
  }
}

/** A stack that is closed after the test. */
export async function stackForTest(...how: Parameters<typeof openStack>): Promise<Stack> {
  const stack = await openStack(...how);
  onTestFinished(() => stack.close());
  return stack;
}

/** A stack that is closed after the test file. */
export async function stackForFile(...how: Parameters<typeof openStack>): Promise<Stack> {
  const stack = await openStack(...how);
  afterAll(() => stack.close());
  return stack;
}

/** A gateway that is shut down after the test. */
export async function gatewayForTest(...how: Parameters<typeof openGateway>): Promise<TestGateway> {
  const gateway = await openGateway(...how);
  onTestFinished(() => gateway.shutdown());
  return gateway;
}

const sandboxes = new Set<Sandbox>();
atEndOfFile(async () => {
  for (const sandbox of sandboxes) await sandbox.close();
  sandboxes.clear();
});

/** A sandbox that is closed after the test file, wherever in it it is opened. */
export async function openSandbox(options: SandboxOptions = {}): Promise<Sandbox> {
  const sandbox = await createSandbox({ port: 0, ...options });
  sandboxes.add(sandbox);
  return sandbox;
}

/** A payout whose merchant leaves as soon as the backend has it, which then waits until the test ends the delay of its key. */
export async function payAndLeave(
  { url, sandbox }: Pick<Stack, 'url' | 'sandbox'>,
  key: string,
): Promise<void> {
  const leaving = new AbortController();
  const left = withdraw(url, { key, fault: 'delay=60000', signal: leaving.signal }).catch(() => 'left');
  await until(() => sandbox.requests.ofKey(key) === 1);
  leaving.abort();
  expect(await left).toBe('left');
}

/** Resolves when no request counts as in flight any more. */
export const nothingOpen = ({ gateway }: TestGateway): Promise<boolean> =>
  until(async () => (await gateway.metrics.text()).includes('oncegate_in_flight 0'));

interface Check {
  name: string;
  ok: boolean;
  detail: string;
  warnings?: string[];
}

/** What /readyz says. */
export async function readiness({ adminUrl }: { adminUrl: string }) {
  const { status, json } = await send(adminUrl, { path: '/readyz' });
  const body = json<{ status: string; checks: Check[] }>();
  return { status, body, check: (name: string) => body.checks.find((one) => one.name === name) };
}

/** The open connections of a server. */
export const connectionsOf = (server: {
  getConnections(done: (error: unknown, count: number) => void): unknown;
}): Promise<number> => new Promise((resolve) => server.getConnections((_error, count) => resolve(count)));
