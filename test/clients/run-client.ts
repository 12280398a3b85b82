import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { track } from '../support/spawn.ts';

/** One payment, with as many attempts as the client makes. */
export interface Call {
  url: string;
  key: string;
  /** The sandbox's fault. */
  fault?: string | undefined;
  timeoutMs: number;
}

/** What a client reported to the code that called it. */
export type Report =
  | { kind: 'result'; transactionId?: string }
  | { kind: 'error'; error: string; status?: number; code?: string };

/** Makes these calls at once with a client in a separate process. Resolves to one report for each call. */
export async function runClient(client: string, calls: readonly Call[]): Promise<Report[]> {
  const script = fileURLToPath(new URL(`./programs/${client}.mjs`, import.meta.url));
  const child = track(
    spawn(process.execPath, [script, JSON.stringify(calls)], { stdio: ['ignore', 'pipe', 'pipe'] }),
  );
  const { stdout, stderr } = child;
  if (!stdout || !stderr) throw new Error('the child has no pipes');
  const [output, errors, [code]] = await Promise.all([text(stdout), text(stderr), once(child, 'exit')]);
  if (code !== 0)
    throw new Error(`${client}.mjs failed (node scripts/setup.mjs --test installs the clients): ${errors}`);
  return JSON.parse(output);
}
