/** `npm run chaos`: three gateways on a real store, merchants who retry, and faults of every part. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { inspect, parseArgs } from 'node:util';
import { LEASE_MS } from './gateway-config.ts';
import { NO_FAULTS, run } from './run.ts';
import { markdownOf, type Summary, tableOf } from './summary.ts';
import { STORES, type StoreName, UNSAFE, type Unsafe } from './topology.ts';

const MAIN = fileURLToPath(import.meta.url);

const USAGE = `npm run chaos -- [options]

Runs three gateways on a real store in front of the sandbox's ledger, lets merchants pay and retry, breaks things by a
seeded schedule, heals them, and compares what merchants were answered with what was paid.
Exit codes: 0 clean, 1 the promise was broken, 64 wrong options, 70 the suite itself failed.

  --store NAME      ${STORES.join(', ')} (default sqlite)
  --all             each of these stores; prints one table at the end
  --at-once N       of these, how many at a time (default 1)
  --minutes M       how long things break (default 1.5); up to twice as long again, until each fault has come
  --seed N          repeats the schedule of another run (default: a new one, which is printed)
  --rate N          new keys a second (default 100)
  --together N      at most this many faults at once (default 2)
  --only TEXT       only faults with this text in their names; ${NO_FAULTS}: nothing breaks, and memory and descriptors are judged
  --recover-within MS  how long merchants may wait for a final answer after a heal, p99 (default: a lease and two seconds)
  --unsafe NAME     a configuration that cannot keep the promise, to see it broken:
${Object.entries(UNSAFE)
  .map(([name, says]) => `                    ${name}: ${says}`)
  .join('\n')}
  --json FILE       writes the summary; with --all a list of them
  --keep            keeps the folder with history and logs even when the run is clean
  --help
`;

function usage(message: string): never {
  process.stderr.write(`chaos: ${message}\n\n${USAGE}`);
  process.exit(64);
}

function read() {
  try {
    return parseArgs({
      options: {
        store: { type: 'string', default: 'sqlite' },
        all: { type: 'boolean', default: false },
        'at-once': { type: 'string', default: '1' },
        minutes: { type: 'string', default: '1.5' },
        seed: { type: 'string', default: String(Math.floor(Math.random() * 1_000_000)) },
        rate: { type: 'string', default: '100' },
        together: { type: 'string', default: '2' },
        'recover-within': { type: 'string', default: String(LEASE_MS + 2000) },
        only: { type: 'string', default: '' },
        unsafe: { type: 'string' },
        json: { type: 'string' },
        keep: { type: 'boolean', default: false },
        help: { type: 'boolean', short: 'h', default: false },
      },
    }).values;
  } catch (error) {
    return usage((error as Error).message);
  }
}

const values = read();
if (values.help) {
  process.stdout.write(USAGE);
  process.exit(0);
}

type NumberName = 'seed' | 'minutes' | 'rate' | 'together' | 'recover-within' | 'at-once';

function numberOf(name: NumberName, min: number, max: number): number {
  const text = values[name];
  const number = Number(text);
  if (text.trim() !== '' && number >= min && number <= max) return number;
  return usage(`--${name} takes a number from ${min} to ${max}, not ${JSON.stringify(text)}`);
}

function oneOf<T extends string>(name: string, text: string, known: readonly T[]): T {
  return known.find((one) => one === text) ?? usage(`--${name} takes one of ${known.join(', ')}`);
}

const { all, unsafe } = values;
if (all && unsafe !== undefined) usage('--unsafe goes with one store, not with --all');
const options = {
  unsafe: unsafe === undefined ? undefined : oneOf('unsafe', unsafe, Object.keys(UNSAFE) as Unsafe[]),
  only: values.only,
  seed: Math.floor(numberOf('seed', 0, 2 ** 31)),
  minutes: numberOf('minutes', 0.1, 24 * 60),
  ratePerS: numberOf('rate', 1, 5000),
  together: Math.floor(numberOf('together', 1, 5)),
  recoverWithinMs: numberOf('recover-within', 1, 600_000),
};
const atOnce = Math.floor(numberOf('at-once', 1, STORES.length));
const summaries = new Map<StoreName, Summary>();

const say = (line: string) => void process.stderr.write(`${line}\n`);

async function runHere(store: StoreName): Promise<void> {
  say(`chaos: --store ${store} --minutes ${options.minutes} --seed ${options.seed}`);
  const summary = await run({ ...options, store, progress: say });
  summaries.set(store, summary);
  process.stdout.write(tableOf(summary));
  if (values.json) writeFileSync(values.json, `${JSON.stringify(summary, null, 2)}\n`);
  if (summary.clean && !values.keep) rmSync(summary.folder, { recursive: true, force: true });
  else process.stdout.write(`history and logs: ${summary.folder}\n`);
}

/** Each store runs in a separate process: the check of one history would stop the proxies of another store. */
async function runInProcess(store: StoreName, folder: string): Promise<void> {
  const json = join(folder, `${store}.json`);
  const given = process.argv.slice(2).filter((argument) => argument !== '--all');
  // The last one of an option wins.
  const args = [...given, '--store', store, '--seed', `${options.seed}`, '--json', json];
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  process.once('exit', () => child.kill('SIGTERM'));
  createInterface({ input: child.stderr }).on('line', (line) => say(`${store}: ${line}`));
  const [output, [code, signal]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
  if (code !== 0) say(`${store}: ended with ${code ?? signal}\n${output}`);
  if (existsSync(json)) summaries.set(store, JSON.parse(readFileSync(json, 'utf8')));
}

async function runAll(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'oncegate-chaos-all-'));
  const queue = STORES.values();
  const lane = async () => {
    for (const store of queue) await runInProcess(store, folder);
  };
  await Promise.all(Array.from({ length: atOnce }, lane));
  const ended = STORES.flatMap((store) => summaries.get(store) ?? []);
  process.stdout.write(markdownOf(ended));
  if (values.json) writeFileSync(values.json, `${JSON.stringify(ended, null, 2)}\n`);
}

// The 'exit' event stops the processes of the suite. A signal without a listener would not emit it.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130));
const stores = all ? STORES : [oneOf('store', values.store, STORES)];
try {
  await (all ? runAll() : runHere(stores[0] as StoreName));
} catch (error) {
  // With its cause: "fetch failed" alone does not say why.
  say(`chaos: the suite itself failed: ${inspect(error)}`);
}
if ([...summaries.values()].some(({ clean }) => !clean)) process.exit(1);
process.exit(summaries.size < stores.length ? 70 : 0);
