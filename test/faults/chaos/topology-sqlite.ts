import { type ChildProcess, execFile, execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { isStopped } from '../../support/process-life.ts';
import { until } from '../../support/until.ts';
import { canFailIo } from './preloads.ts';
import { end, startNode } from './processes.ts';
import type { StoreFault, Topology } from './topology.ts';

const OTHER_PROCESS = fileURLToPath(new URL('./sqlite-other-process.ts', import.meta.url));
/** Large enough for the records of an hour. A tmpfs uses memory only for what is written. */
const DISK_SIZE = '768m';

/** One database that all gateways share, on its own small disk if mounting is allowed. */
export async function startSqlite(folder: string): Promise<Topology> {
  const path = join(folder, 'store');
  mkdirSync(path, { mode: 0o700 });
  const unmount = () => void execFileSync('umount', ['-l', path]);
  const missing = canFailIo
    ? []
    : ['I/O errors: libfiu is missing (Debian, Ubuntu: apt-get install fiu-utils)'];
  const faults = processFaults(path, join(folder, 'other-processes.log'));
  const config = { store: { kind: 'sqlite' as const, path } };
  try {
    const options = ['-t', 'tmpfs', '-o', `size=${DISK_SIZE},mode=700`];
    execFileSync('mount', [...options, 'oncegate-chaos', path], { stdio: ['ignore', 'ignore', 'pipe'] });
  } catch (error) {
    const why = String((error as { stderr?: Buffer }).stderr ?? error).trim();
    missing.push(`the disk is full, and freed: no tmpfs can be mounted here (${why})`);
    return { config, faults, missing, stop: async () => {} };
  }
  process.once('exit', unmount);
  return {
    ...{ config, missing, faults: [...faults, fullDisk(path)] },
    stop: async () => {
      // The files on a tmpfs are lost when it is unmounted.
      cpSync(path, join(folder, 'records'), { recursive: true });
      process.removeListener('exit', unmount);
      unmount();
    },
  };
}

/** Another process uses the database, and stops itself there. The signal heals the fault. */
function processFaults(path: string, logFile: string): StoreFault[] {
  const fault = (name: string, as: 'reader' | 'writer', healedBy: 'SIGCONT' | 'SIGKILL'): StoreFault => {
    let child: ChildProcess | undefined;
    return {
      name,
      inject: async () => {
        const holder = await startNode([OTHER_PROCESS, join(path, 'records.db'), as], {
          isReady: (lines) => lines.includes('holds'),
          logFile,
        });
        child = holder;
        // A SIGCONT before it has stopped itself would be lost.
        await until(() => isStopped(holder.pid as number));
      },
      heal: () => child && end(child, healedBy),
    };
  };
  return [
    fault('a process stopped within a transaction', 'writer', 'SIGCONT'),
    fault('a process killed within a transaction', 'writer', 'SIGKILL'),
    { ...fault('a reader holds a snapshot', 'reader', 'SIGKILL'), completesOn: true, holdMs: 4000 },
  ];
}

/** Fills the disk to the last byte. */
function fullDisk(path: string): StoreFault {
  const filler = join(path, 'filler');
  return {
    name: 'disk full',
    inject: async () => {
      // In another process, because this one passes on what gateways and backend say.
      const fill = promisify(execFile)('dd', ['if=/dev/zero', `of=${filler}`, 'bs=1M']);
      const { stderr } = await fill.catch((error) => error);
      if (!String(stderr).includes('No space left')) throw new Error(`the disk is not full: ${stderr}`);
    },
    heal: () => rmSync(filler, { force: true }),
  };
}
