import { type ChildProcess, execFile, execFileSync } from 'node:child_process';
import { appendFileSync, cpSync, mkdirSync, rmSync, statfsSync } from 'node:fs';
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
const DISK_SIZE = '1g';
const BLOCK = Buffer.alloc(4096);

/** One database that all gateways share, on its own small disk if mounting is allowed. */
export async function startSqlite(folder: string): Promise<Topology> {
  const path = join(folder, 'store');
  mkdirSync(path, { mode: 0o700 });
  const unmountable = mount(path);
  const logFile = join(folder, 'other-processes.log');
  const missing = [
    ...(unmountable ? [`the disk is full, and freed: no tmpfs can be mounted here (${unmountable})`] : []),
    ...(canFailIo ? [] : ['I/O errors: libfiu is missing (Debian, Ubuntu: apt-get install fiu-utils)']),
  ];
  return {
    config: { store: { kind: 'sqlite', path } },
    faults: [
      otherProcessFault('a process stopped within a transaction', 'writer', 'SIGCONT', path, logFile),
      otherProcessFault('a process killed within a transaction', 'writer', 'SIGKILL', path, logFile),
      {
        ...otherProcessFault('a reader holds a snapshot', 'reader', 'SIGKILL', path, logFile),
        completesOn: true,
        holdMs: 4000,
      },
      ...(unmountable ? [] : [fullDisk(path)]),
    ],
    missing,
    stop: async () => {
      if (unmountable) return;
      // The files on a tmpfs are lost when it is unmounted.
      cpSync(path, join(folder, 'records'), { recursive: true });
      process.removeListener('exit', unmount);
      unmount();
    },
  };

  function unmount(): void {
    execFileSync('umount', ['-l', path]);
  }

  /** Mounts the tmpfs, or returns why that is impossible. */
  function mount(at: string): string | undefined {
    try {
      const options = ['-t', 'tmpfs', '-o', `size=${DISK_SIZE},mode=700`];
      execFileSync('mount', [...options, 'oncegate-chaos', at], { stdio: ['ignore', 'ignore', 'pipe'] });
    } catch (error) {
      return String((error as { stderr?: Buffer }).stderr ?? error).trim();
    }
    process.once('exit', unmount);
    return undefined;
  }
}

/** Another process uses the database, and stops itself there. The signal heals the fault. */
function otherProcessFault(
  name: string,
  as: 'reader' | 'writer',
  healedBy: 'SIGCONT' | 'SIGKILL',
  path: string,
  logFile: string,
): StoreFault {
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
    heal: async () => {
      if (child) await end(child, healedBy);
    },
  };
}

/** Fills the disk to the last byte. */
function fullDisk(path: string): StoreFault {
  const filler = join(path, 'filler');
  return {
    name: 'disk full',
    inject: async () => {
      const { bavail, bsize } = statfsSync(path);
      // The gateways write meanwhile, so this may fail. The file keeps the space that it got.
      await promisify(execFile)('fallocate', ['-l', `${bavail * bsize}`, filler]).catch(() => {});
      try {
        for (;;) appendFileSync(filler, BLOCK);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
      }
    },
    heal: async () => rmSync(filler, { force: true }),
  };
}
