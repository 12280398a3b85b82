import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FAST_START, newFolder } from '../../support/command.ts';
import type { ConfigInput } from '../../support/config.ts';
import { isStopped } from '../../support/process-life.ts';
import { SOURCE_MAIN, type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { until } from '../../support/until.ts';

/** Points between the durable start and the first byte, see pause-point.ts. */
export type PausePoint = 'after_start' | 'before_connect';

export interface PausingGateway extends SpawnedGateway {
  /** The next execution stops the process at this point. */
  arm(): void;
  untilPaused(): Promise<void>;
  resume(): void;
}

/** A gateway in its own process that can stop itself at a point of an execution. */
export async function spawnPausingGateway(config: ConfigInput, at: PausePoint): Promise<PausingGateway> {
  const folder = newFolder();
  const file = join(folder, 'armed');
  const preload = new URL('./pause-point.ts', import.meta.url).href;
  const env = { ...FAST_START, NODE_OPTIONS: `--import ${preload}`, PAUSE_AT: at, PAUSE_FILE: file };
  const gateway = await spawnGateway(config, env, folder, undefined, SOURCE_MAIN);
  return {
    ...gateway,
    arm: () => writeFileSync(file, ''),
    async untilPaused() {
      await until(() => isStopped(gateway.pid));
    },
    resume: () => void process.kill(gateway.pid, 'SIGCONT'),
  };
}
