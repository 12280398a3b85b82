/** `npm run chaos`: three gateways on a real store, merchants who retry, and faults of every part. */
import { rmSync, writeFileSync } from 'node:fs';
import { inspect, parseArgs } from 'node:util';
import { runAll } from './all.ts';
import { NO_FAULTS, run } from './run.ts';
import { tableOf } from './summary.ts';
import { STORES, type StoreName, UNSAFE, type Unsafe } from './topology.ts';

const USAGE = `npm run chaos -- [options]

Runs three gateways on a real store in front of the sandbox's ledger, lets merchants pay and retry, breaks things by a
seeded schedule, heals them, and compares what merchants were answered with what was paid.
Exit codes: 0 clean, 1 the promise was broken, 64 wrong options, 70 the suite itself failed.

  --store NAME      ${STORES.join(', ')} (default sqlite)
  --all             each of these stores; prints one table at the end
  --at-once N       of these, how many at a time (default 1)
  --minutes M       how long things break (default 1.5); up to as long again, until each fault has come
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
        'recover-within': { type: 'string' },
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

function numberOf(name: string, text: string, min: number, max: number): number {
  const number = Number(text);
  if (text.trim() !== '' && number >= min && number <= max) return number;
  return usage(`--${name} takes a number from ${min} to ${max}, not ${JSON.stringify(text)}`);
}

function oneOf<T extends string>(name: string, text: string, known: readonly T[]): T {
  return known.find((one) => one === text) ?? usage(`--${name} takes one of ${known.join(', ')}`);
}

const values = read();
if (values.help) {
  process.stdout.write(USAGE);
  process.exit(0);
}
const unsafe =
  values.unsafe === undefined
    ? undefined
    : oneOf<Unsafe>('unsafe', values.unsafe, Object.keys(UNSAFE) as Unsafe[]);
const options = {
  unsafe,
  only: values.only,
  seed: Math.floor(numberOf('seed', values.seed, 0, 2 ** 31)),
  minutes: numberOf('minutes', values.minutes, 0.1, 24 * 60),
  ratePerS: numberOf('rate', values.rate, 1, 5000),
  together: Math.floor(numberOf('together', values.together, 1, 5)),
  recoverWithinMs:
    values['recover-within'] === undefined
      ? undefined
      : numberOf('recover-within', values['recover-within'], 1, 600_000),
  progress: (line: string) => void process.stderr.write(`${line}\n`),
};

/** Returns the exit code. */
async function runOne(store: StoreName): Promise<number> {
  options.progress(`chaos: --store ${store} --minutes ${options.minutes} --seed ${options.seed}`);
  const summary = await run({ ...options, store });
  process.stdout.write(tableOf(summary));
  if (values.json) writeFileSync(values.json, `${JSON.stringify(summary, null, 2)}\n`);
  if (summary.clean && !values.keep) rmSync(summary.folder, { recursive: true, force: true });
  else process.stdout.write(`history and logs: ${summary.folder}\n`);
  return summary.clean ? 0 : 1;
}

async function runEach(): Promise<number> {
  const { seed, minutes, ratePerS, together, only, recoverWithinMs } = options;
  if (unsafe !== undefined) usage('--unsafe goes with one store, not with --all');
  const flags = {
    ...{ seed, minutes, together, rate: ratePerS, 'recover-within': recoverWithinMs },
    only: only || undefined,
  };
  return await runAll({
    args: [
      ...Object.entries(flags).flatMap(([name, value]) =>
        value === undefined ? [] : [`--${name}`, `${value}`],
      ),
      ...(values.keep ? ['--keep'] : []),
    ],
    atOnce: Math.floor(numberOf('at-once', values['at-once'], 1, STORES.length)),
    json: values.json,
    progress: options.progress,
  });
}

// The 'exit' event stops the processes of the suite. A signal without a listener would not emit it.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130));
try {
  process.exit(await (values.all ? runEach() : runOne(oneOf('store', values.store, STORES))));
} catch (error) {
  // With its cause: "fetch failed" alone does not say why.
  options.progress(`chaos: the suite itself failed: ${inspect(error)}`);
  process.exit(70);
}
