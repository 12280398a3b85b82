import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { type Summary, shareNeverSent } from './summary.ts';
import { STORES, type StoreName } from './topology.ts';

const MAIN = fileURLToPath(new URL('./main.ts', import.meta.url));

export interface AllOptions {
  /** Arguments of each store's run. */
  args: string[];
  /** How many runs at a time. */
  atOnce: number;
  /** The file that gets all summaries. */
  json: string | undefined;
  progress(line: string): void;
}

interface Outcome {
  store: StoreName;
  code: number | string;
  /** Absent if the suite itself failed. */
  summary: Summary | undefined;
}

/** Runs the suite once for each store, and prints one table. Returns the exit code. */
export async function runAll({ args, atOnce, json, progress }: AllOptions): Promise<number> {
  const folder = mkdtempSync(join(tmpdir(), 'oncegate-chaos-all-'));
  progress(`chaos: ${STORES.join(', ')}: ${args.join(' ')}; results in ${folder}`);
  const outcomes: Outcome[] = [];
  const queue = STORES.values();
  const lane = async () => {
    for (const store of queue) outcomes.push(await runStore(store, args, folder, progress));
  };
  await Promise.all(Array.from({ length: atOnce }, lane));
  process.stdout.write(markdownOf(outcomes));
  const summaries = outcomes.flatMap(({ summary }) => summary ?? []);
  writeFileSync(json ?? join(folder, 'all.json'), `${JSON.stringify(summaries, null, 2)}\n`);
  if (summaries.some(({ clean }) => !clean)) return 1;
  return summaries.length === STORES.length ? 0 : 70;
}

async function runStore(
  store: StoreName,
  args: readonly string[],
  folder: string,
  progress: (line: string) => void,
): Promise<Outcome> {
  const json = join(folder, `${store}.json`);
  const child = spawn(process.execPath, [MAIN, '--store', store, '--json', json, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const stop = () => child.kill('SIGTERM');
  process.once('exit', stop);
  createInterface({ input: child.stderr }).on('line', (line) => progress(`${store}: ${line}`));
  const [output, [code, signal]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
  process.removeListener('exit', stop);
  writeFileSync(join(folder, `${store}.txt`), output);
  const summary = existsSync(json) ? (JSON.parse(readFileSync(json, 'utf8')) as Summary) : undefined;
  if (!summary?.clean) progress(`${store}: ended with ${code ?? signal}\n${output}`);
  return { store, code: code ?? signal, summary };
}

const COLUMNS: Record<string, (summary: Summary) => string | number> = {
  keys: ({ keys }) => keys,
  calls: ({ calls }) => calls,
  'in doubt': ({ inDoubt }) => inDoubt,
  'never sent': shareNeverSent,
  replays: ({ replays }) => replays,
  'gateway deaths': ({ gatewayDeaths }) => gatewayDeaths,
  violations: ({ violations }) => violations.total,
  'recovery p99 ms': ({ recoveryMs }) => recoveryMs.p99,
  seed: ({ seed }) => seed,
};

/** Sorted by store, not by completion. */
function markdownOf(outcomes: readonly Outcome[]): string {
  const names = ['store', ...Object.keys(COLUMNS)];
  const rows = STORES.flatMap((store) => outcomes.filter((outcome) => outcome.store === store)).map(
    ({ store, code, summary }) => [
      store,
      ...Object.values(COLUMNS).map((cell, i) => {
        if (summary) return cell(summary);
        return i === 0 ? `failed (${code})` : '';
      }),
    ],
  );
  const lines = [names, names.map((_, i) => (i === 0 ? '---' : '---:')), ...rows];
  return `${lines.map((cells) => `| ${cells.join(' | ')} |`).join('\n')}\n`;
}
