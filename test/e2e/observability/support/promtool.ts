import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** Where scripts/setup.mjs puts it if the machine has none. */
const CARRIED = fileURLToPath(new URL('../../../../node_modules/.tools/promtool', import.meta.url));

/** Runs Prometheus' own checker. Returns its complaints, or an empty text. */
export function promtool(...args: string[]): string {
  const command = existsSync(CARRIED) ? CARRIED : 'promtool';
  const { status, stdout, stderr, error } = spawnSync(command, args, { encoding: 'utf8' });
  if (error) throw error;
  return status === 0 ? '' : `${stdout}${stderr}` || `promtool ended with ${status}`;
}
