/** `npm run chaos`: three gateways on a real store, merchants who retry, and faults of every part. */
import { rmSync, writeFileSync } from 'node:fs';
import { inspect, parseArgs } from 'node:util';
import { LEASE_MS } from './gateway-config.ts';
import { NO_FAULTS, run } from './run.ts';
import { markdownOf, type Summary, tableOf } from './summary.ts';
import { STORES, type StoreName, UNSAFE, type Unsafe } from './topology.ts';

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
const stores = all ? STORES : [oneOf('store', values.store, STORES)];
const atOnce = Math.floor(numberOf('at-once', 1, STORES.length));
const summaries = new Map<StoreName, Summary>();

async function runOn(store: StoreName): Promise<void> {
  const progress = (line: string) => void process.stderr.write(`${all ? `${store}: ` : ''}${line}\n`);
  progress(`chaos: --store ${store} --minutes ${options.minutes} --seed ${options.seed}`);
  try {
    const summary = await run({ ...options, store, progress });
    summaries.set(store, summary);
    if (!all || !summary.clean) process.stdout.write(tableOf(summary));
    if (summary.clean && !values.keep) rmSync(summary.folder, { recursive: true, force: true });
    else process.stdout.write(`history and logs: ${summary.folder}\n`);
  } catch (error) {
    // With its cause: "fetch failed" alone does not say why.
    progress(`chaos: the suite itself failed: ${inspect(error)}`);
  }
}

// The 'exit' event stops the processes of the suite. A signal without a listener would not emit it.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130));
const queue = stores.values();
const lane = async () => {
  for (const store of queue) await runOn(store);
};
await Promise.all(Array.from({ length: atOnce }, lane));
const ended = stores.flatMap((store) => summaries.get(store) ?? []);
if (all) process.stdout.write(markdownOf(ended));
if (values.json) writeFileSync(values.json, `${JSON.stringify(all ? ended : ended[0], null, 2)}\n`);
process.exit(ended.some(({ clean }) => !clean) ? 1 : ended.length < stores.length ? 70 : 0);
