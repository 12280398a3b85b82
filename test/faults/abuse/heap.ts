import { once } from 'node:events';
import { WebSocket } from 'ws';
import type { Sandbox } from '../../../src/sandbox/sandbox.ts';
import { configFor, startGateway } from '../../e2e/process/gateways.ts';
import type { MoreConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';

export interface InspectedGateway extends SpawnedGateway {
  /** Bytes of live objects after a full garbage collection. */
  liveBytes(): Promise<number>;
}

const LIVE =
  '(() => { const { heapUsed, external } = process.memoryUsage(); return heapUsed + external; })()';

/** A gateway in a separate process, whose memory is measured over the inspector protocol. */
export async function startInspected(
  upstream: Pick<Sandbox, 'url'>,
  more: MoreConfig = {},
): Promise<InspectedGateway> {
  const port = await freePort();
  const env = { NODE_OPTIONS: `--inspect=127.0.0.1:${port}` };
  const gateway = await startGateway(configFor(upstream as Sandbox, more), env);
  return { ...gateway, liveBytes: () => liveBytes(port) };
}

async function liveBytes(port: number): Promise<number> {
  const targets = (await (await fetch(`http://127.0.0.1:${port}/json/list`)).json()) as {
    webSocketDebuggerUrl: string;
  }[];
  const socket = new WebSocket(targets[0]?.webSocketDebuggerUrl ?? '');
  await once(socket, 'open');
  const call = async (method: string, params = {}) => {
    socket.send(JSON.stringify({ id: 1, method, params }));
    const [bytes] = await once(socket, 'message');
    return JSON.parse(String(bytes)).result;
  };
  // The second collection frees what the first one finalized.
  for (let i = 0; i < 2; i++) await call('HeapProfiler.collectGarbage');
  const { result } = await call('Runtime.evaluate', { expression: LIVE, returnByValue: true });
  socket.close();
  await once(socket, 'close');
  return Number(result.value);
}
