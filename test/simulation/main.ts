/** `npm run simulate`: gateways, stores, backends, merchants and operators in simulated time, in one process. */
import { parseArgs } from 'node:util';
import { tryGuards } from './guards.ts';
import { BROKEN } from './mistakes.ts';
import { draw } from './plan.ts';
import { EVENTS, type Failure, historyOf, MIXES, newSum, reduce, runSeed } from './run.ts';

const USAGE = `npm run simulate -- [options]

Runs small worlds in simulated time: the gateway's own code on a store in memory, with skewed clocks, pauses, deaths, failovers, lost
and late commands, a backend that does everything that backends do, merchants who retry, and operators. Judges each by what the
backend executed and what merchants and operators were told. A seed is a history.
Exit codes: 0 clean, 1 the promise was broken, 64 wrong options.

  --payouts N     until merchants have sent so many requests with a key, retries included (default 100000)
  --minutes M     for so long instead
  --worlds N      so many histories instead
  --seed N        of the first history; each following one adds 1 (default: a new one, which is printed)
  --mix NAME      ${Object.entries(MIXES)
    .map(([name, { says }]) => `${name}: ${says}`)
    .join('\n                  ')}
  --broken NAME   a world with a mistake, to see it caught: ${Object.keys(BROKEN).join('; ')}
  --guards        takes out the guards of what is simulated, one by one, and says which ones are noticed
  --quick         does not look for the shortest history that shows a failure
  --reached       prints how often each fault has met each step of a gateway
  --help
`;

function usage(message: string): never {
  process.stderr.write(`simulate: ${message}\n\n${USAGE}`);
  process.exit(64);
}

function read() {
  try {
    return parseArgs({
      options: {
        payouts: { type: 'string', default: '100000' },
        minutes: { type: 'string' },
        worlds: { type: 'string' },
        seed: { type: 'string', default: String(Math.floor(Math.random() * 1e9)) },
        mix: { type: 'string', default: 'default' },
        broken: { type: 'string' },
        guards: { type: 'boolean', default: false },
        quick: { type: 'boolean', default: false },
        reached: { type: 'boolean', default: false },
        help: { type: 'boolean', short: 'h', default: false },
      },
    }).values;
  } catch (error) {
    return usage((error as Error).message);
  }
}

const REDUCE_MS = 60_000;
const SAY_EVERY_MS = 10_000;
/** How many histories are run twice and compared. */
const COMPARED = 20;

const options = read();
if (options.help) {
  process.stdout.write(USAGE);
  process.exit();
}
const numberOf = (name: 'payouts' | 'minutes' | 'worlds' | 'seed'): number => {
  const value = Number(options[name] ?? Number.POSITIVE_INFINITY);
  if (Number.isNaN(value) || value < 0) usage(`--${name} must be a number`);
  return value;
};
const mixed = options.broken === undefined ? MIXES[options.mix] : BROKEN[options.broken];
if (!mixed)
  usage(
    `there is no ${options.broken === undefined ? `mix ${options.mix}` : `broken world ${options.broken}`}`,
  );
const { mix } = mixed;
const mistakes = 'mistakes' in mixed ? mixed.mistakes : {};
const seed = numberOf('seed');
const isLimited = options.minutes !== undefined || options.worlds !== undefined;
const most = {
  payouts: isLimited ? Number.POSITIVE_INFINITY : numberOf('payouts'),
  worlds: numberOf('worlds'),
  ms: numberOf('minutes') * 60_000,
};

const write = (text: string) => process.stdout.write(`${text}\n`);
const number = (value: number) => value.toLocaleString('en');
const startedMs = performance.now();
const sum = newSum();
const tookMs = () => performance.now() - startedMs;
const figures = () =>
  `${number(sum.payouts)} payouts (${number(sum.executions)} executed) in ${number(sum.worlds)} worlds, ` +
  `${number(Math.round(sum.tookMs / 86_400_000))} simulated days, ${(tookMs() / 1000).toFixed(1)} s`;

async function search(): Promise<Failure | undefined> {
  let saidMs = 0;
  while (sum.payouts < most.payouts && sum.worlds < most.worlds && tookMs() < most.ms) {
    const next = seed + sum.worlds;
    if (sum.worlds < COMPARED) {
      const [once, again] = [
        await historyOf(draw(next, mix), mistakes),
        await historyOf(draw(next, mix), mistakes),
      ];
      if (once.join('\n') !== again.join('\n'))
        return { seed: next, violations: ['the seed gave two histories'] };
    }
    const failure = await runSeed(next, { mix, mistakes, sum });
    if (failure) return failure;
    if (tookMs() - saidMs < SAY_EVERY_MS) continue;
    saidMs = tookMs();
    write(figures());
    // Lets a signal through.
    await new Promise((resolve) => setImmediate(resolve));
  }
  return undefined;
}

if (options.guards) {
  await tryGuards(numberOf('payouts'), write);
  process.exit();
}
write(`from seed ${seed}`);
const failure = await search();
write(figures());
for (const [why, times] of sum.excused) write(`excused ${times} times: ${why}`);
/** Fewer histories cannot reach everything. */
const ENOUGH = 5000;
const missed = sum.worlds < ENOUGH ? [] : EVENTS.filter((event) => !sum.reached.has(event));
if (missed.length > 0) write(`not reached: ${missed.join(', ')}`);
else if (sum.worlds >= ENOUGH) write('every event was reached');
const met = [...sum.reached].filter(([what]) => what.includes(' × '));
write(`${met.length} pairs of a step and a fault were reached`);
if (options.reached)
  for (const [what, times] of met.toSorted(([a], [b]) => (a < b ? -1 : 1))) write(`${times} ${what}`);
if (failure) {
  write([`\nseed ${failure.seed} breaks the promise:`, ...failure.violations].join('\n'));
  if (!options.quick) {
    const shortest = await reduce(draw(failure.seed, mix), mistakes, REDUCE_MS);
    write(['\nthe shortest history:', ...(await historyOf(shortest, mistakes))].join('\n'));
  }
  const which = options.broken === undefined ? ` --mix ${options.mix}` : ` --broken '${options.broken}'`;
  write(`\nagain: npm run simulate -- --seed ${failure.seed} --worlds 1${which}`);
  process.exitCode = 1;
} else write('clean: no violation');
