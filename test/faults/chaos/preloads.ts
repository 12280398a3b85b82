import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { promisify } from 'node:util';

const FAKETIME = ['x86_64', 'aarch64']
  .map((machine) => `/usr/lib/${machine}-linux-gnu/faketime/libfaketime.so.1`)
  .find((file) => existsSync(file));
const LIBFIU = ['/usr/lib/fiu/fiu_run_preload.so', '/usr/lib/fiu/fiu_posix_preload.so'];

/** Whether libfiu can make a gateway's system calls fail. */
export const canFailIo = LIBFIU.every((file) => existsSync(file)) && existsSync('/usr/bin/fiu-ctrl');

const CONTROL_WITHIN_MS = 2000;

/**
 * The environment of a process whose wall clock can be moved, and whose system calls can be made to fail.
 *
 * @param clockFile what it says moves the clock
 * @param failIoBy prefix of the named pipes for {@link controlIo}
 */
export function preloaded(clockFile: string | undefined, failIoBy: string | undefined): NodeJS.ProcessEnv {
  if (clockFile !== undefined && !FAKETIME)
    throw new Error('libfaketime is missing (Debian, Ubuntu: apt-get install faketime)');
  const libraries = [
    ...(failIoBy !== undefined && canFailIo ? LIBFIU : []),
    ...(clockFile !== undefined ? [FAKETIME] : []),
  ];
  return {
    ...(libraries.length > 0 && { LD_PRELOAD: libraries.join(':') }),
    ...(failIoBy !== undefined && { FIU_CTRL_FIFO: failIoBy }),
    ...(clockFile !== undefined && {
      FAKETIME_TIMESTAMP_FILE: clockFile,
      // How soon the process notices a changed clock, in seconds.
      FAKETIME_CACHE_DURATION: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
      FAKETIME_DONT_RESET: '1',
    }),
  };
}

/**
 * Makes these system calls of a process fail with a probability; 0 ends that. The names are libfiu's.
 *
 * @throws if the process does not answer, because it is stopped or gone
 */
export async function controlIo(
  prefix: string,
  pid: number | undefined,
  points: readonly string[],
  probability: number,
): Promise<void> {
  const commands = points.flatMap((name) => [
    '-c',
    probability > 0 ? `enable_random name=${name},probability=${probability}` : `disable name=${name}`,
  ]);
  const options = { timeout: CONTROL_WITHIN_MS, killSignal: 'SIGKILL' } as const;
  await promisify(execFile)('fiu-ctrl', ['-f', prefix, ...commands, `${pid}`], options);
}
