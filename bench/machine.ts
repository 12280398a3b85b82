import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { cpus, release, totalmem } from 'node:os';
import type { Results } from './results.ts';

const GIB = 1024 ** 3;

export function machine(): Results['machine'] {
  const [first] = cpus();
  return {
    cpu: first?.model.trim() ?? 'unknown',
    cores: cpus().length,
    memoryGiB: Math.round(totalmem() / GIB),
    kernel: release().split('-', 1)[0] ?? '',
  };
}

/** Versions of the compared systems and of what they ran on. */
export function versions(): Results['versions'] {
  const manifest = JSON.parse(readFileSync(new URL('./peers/package.json', import.meta.url), 'utf8'));
  return {
    node: process.version,
    nginx: firstLine('nginx', ['-v'], /nginx\/(\S+)/),
    redis: firstLine('redis-server', ['--version'], /v=(\S+)/),
    postgres: firstLine('psql', ['--version'], /PostgreSQL\) (\S+)/),
    wrk: firstLine('wrk', ['--version'], /wrk (?:debian\/)?(\S+)/),
    ...manifest.dependencies,
  };
}

function firstLine(command: string, args: readonly string[], version: RegExp): string {
  const { stdout, stderr } = spawnSync(command, args, { encoding: 'utf8' });
  return version.exec(`${stdout}${stderr}`)?.[1] ?? 'unknown';
}
