import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const MAIN = fileURLToPath(new URL('../../../src/main.ts', import.meta.url));

/** What `oncegate records list --in-doubt` shows: merchant and key of each, with a space between. */
export async function listInDoubt(configFile: string): Promise<Set<string>> {
  const args = ['records', 'list', '--in-doubt', '--json', '--limit', '9999999', '--config', configFile];
  const { stdout } = await promisify(execFile)(process.execPath, [MAIN, ...args], { maxBuffer: 2 ** 28 });
  const { records } = JSON.parse(stdout) as { records: { merchant?: string; key?: string }[] };
  return new Set(records.map(({ merchant, key }) => `${merchant} ${key}`));
}
