import { parseArgs } from 'node:util';
import { ALL_CELLS } from './cells.ts';
import type { Work } from './load.ts';

export interface BenchOptions {
  /** Ninety seconds: fewer systems, one round, neither growth nor memory; writes no results. */
  quick: boolean;
  rounds: number;
  /** Memory and store are followed to the millionth key of each store: about twelve minutes more. */
  million: boolean;
  json: string | undefined;
  /** One work and nothing besides, for profiles; writes no results. */
  only: Work | undefined;
}

export const USAGE = `npm run bench -- [options]

Compares oncegate with its peers on the same work: builds it, starts everything on free loopback ports, the system under test
on one core and load, backend and Redis on the other one, and lets each system run in turn, round after round.
Takes some fourteen minutes; needs two cores and nothing else running on them.

  --quick       ninety seconds: what the first targets hang on, one round; writes nothing
  --rounds N    rounds (default 5)
  --million     follows memory and store to the millionth key of each store: some twelve minutes more
  --only WORK   one work, at 300 bytes, and nothing besides; writes nothing. With NODE_OPTIONS="--cpu-prof
                --cpu-prof-dir=DIR" each process leaves a profile of it
  --json FILE   where the results go (default bench/results.json)
  --help
`;

/** @throws with a message for whoever called it */
export function optionsOf(args: string[]): BenchOptions | 'help' {
  const { values } = parseArgs({
    args,
    options: {
      quick: { type: 'boolean', default: false },
      rounds: { type: 'string' },
      million: { type: 'boolean', default: false },
      json: { type: 'string' },
      only: { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  });
  if (values.help) return 'help';
  const rounds = Number(values.rounds ?? (values.quick || values.only !== undefined ? 1 : 5));
  if (!Number.isInteger(rounds) || rounds < 1 || rounds > 100)
    throw new Error(`--rounds takes a number from 1 to 100, not ${JSON.stringify(values.rounds)}`);
  const only = values.only as Work | undefined;
  const works = new Set(ALL_CELLS.map(({ work }) => work));
  if (only !== undefined && !works.has(only))
    throw new Error(`--only takes one of ${[...works].join(', ')}, not ${JSON.stringify(only)}`);
  return {
    only,
    quick: values.quick || only !== undefined,
    million: values.million,
    rounds,
    json: values.json,
  };
}
