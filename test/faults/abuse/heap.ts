import { once } from 'node:events';
import type { Sandbox } from '../../../src/sandbox/create-sandbox.ts';
import type { MoreConfig } from '../../support/config.ts';
import { configFor } from '../../support/config.ts';
import type { SpawnedGateway } from '../../support/spawn.ts';
import { spawnGateway } from '../../support/spawn.ts';

export interface InspectedGateway extends SpawnedGateway {
  /** Bytes of live objects after a full garbage collection. */
  liveBytes(): Promise<number>;
}

/** At a signal, the process collects its garbage and says how much is left. The second collection frees what the first finalized. */
const MEASURE = `process.on('SIGUSR2', () => {
  gc();
  gc();
  const { heapUsed, external } = process.memoryUsage();
  process.stderr.write(String(heapUsed + external));
})`;

/** A gateway in a separate process, whose memory is measured. */
export async function startInspected(sandbox: Sandbox, more: MoreConfig = {}): Promise<InspectedGateway> {
  const preload = `data:text/javascript,${encodeURIComponent(MEASURE)}`;
  const NODE_OPTIONS = `--expose-gc --import=${preload}`;
  const gateway = await spawnGateway(configFor(sandbox, more), { NODE_OPTIONS });
  const liveBytes = async () => {
    process.kill(gateway.pid, 'SIGUSR2');
    const [said] = await once(gateway.child.stderr as NodeJS.ReadableStream, 'data');
    return Number(said);
  };
  return { ...gateway, liveBytes };
}
