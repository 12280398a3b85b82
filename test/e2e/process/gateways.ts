import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../../support/client.ts';
import { newFolder } from '../../support/command.ts';
import { type ConfigInput, type MoreConfig, testConfig } from '../../support/config.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';

export { sandboxForFile as openSandbox } from '../../support/stack.ts';

export const configFor = (sandbox: Pick<Sandbox, 'url'>, more: MoreConfig = {}): ConfigInput =>
  testConfig(newFolder(), sandbox.url, more);

/** Stops a process between two commits: if it is stopped within one, it holds SQLite's write lock, and no other can write. */
export async function pause(paused: SpawnedGateway, other: { url: string }): Promise<void> {
  await until(async () => {
    process.kill(paused.pid, 'SIGSTOP');
    // The backend refuses an amount of zero, but the key is still started and completed.
    const control = withdraw(other.url, { key: randomUUID(), amount: 0 }).then(() => true);
    if (await Promise.race([control, sleep(COMMITS_WITHIN_MS, false)])) return true;
    process.kill(paused.pid, 'SIGCONT');
    await control;
    return false;
  });
}

const COMMITS_WITHIN_MS = 800;

const PATIENCE_MS = 10_000;

/** How a new connection with one request on it ended: with an answer, or the code of its error. */
export const visit = (port: number): Promise<string> =>
  send(`http://127.0.0.1:${port}`, { signal: AbortSignal.timeout(PATIENCE_MS) }).then(
    () => 'an answer',
    ({ code }: NodeJS.ErrnoException) => code ?? 'another error',
  );
