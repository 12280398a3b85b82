import { parseArgs } from 'node:util';
import { ALL_CELLS } from './cells.ts';
import type { Work } from './load.ts';

export type Measurement = Work | 'start';

export interface BenchOptions {
  /** Ninety seconds: fewer systems, one round, without growth and memory. */
  quick: boolean;
  rounds: number;
  /** Also measures memory and store size up to the millionth key of each store: about twelve minutes more. */
  million: boolean;
  /** Runs these workloads only, or the starts. */
  only: readonly Measurement[] | undefined;
}

export const USAGE = `npm run bench -- [options]

Compares oncegate with its peers on the same work. Builds oncegate, starts every system on a free loopback port, and lets the
systems run in turn, round after round. The system under test has one core; load, backend, Redis and PostgreSQL share the
other one.
Takes about half an hour. It needs two cores and an otherwise idle machine. Prints the tables of the README and of
docs/performance.md, and writes every measurement to bench/results.json.

  --quick       some five minutes: one round of the most important systems
  --rounds N    rounds (default 5)
  --million     also measures memory and store size up to one million keys in each store: about twelve minutes more
  --only WORKS  run these workloads only (for example first,replay), at 300 bytes, or start.
                docs/performance.md says how to get a CPU profile of each process
  --help
`;

/** @throws with a message for the user */
export function optionsOf(args: string[]): BenchOptions | 'help' {
  const { values } = parseArgs({
    args,
    options: {
      quick: { type: 'boolean', default: false },
      rounds: { type: 'string' },
      million: { type: 'boolean', default: false },
      only: { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  });
  if (values.help) return 'help';
  const rounds = Number(values.rounds ?? (values.quick || values.only !== undefined ? 1 : 5));
  if (!Number.isInteger(rounds) || rounds < 1 || rounds > 100)
    throw new Error(`--rounds takes a number from 1 to 100, not ${JSON.stringify(values.rounds)}`);
  const works = new Set<string>([...ALL_CELLS.map(({ work }) => work), 'start']);
  const only = values.only?.split(',');
  const unknown = only?.find((work) => !works.has(work));
  if (unknown !== undefined)
    throw new Error(`--only takes some of ${[...works].join(', ')}, not ${JSON.stringify(unknown)}`);
  return {
    only: only as Measurement[] | undefined,
    quick: values.quick || only !== undefined,
    million: values.million,
    rounds,
  };
}
