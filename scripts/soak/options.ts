import { parseArgs } from 'node:util';

export interface SoakOptions {
  kind: 'run';
  minutes: number;
  store: 'sqlite' | 'redis';
  /** Requests a second; `auto`: half of the maximum, which is measured first. */
  rate: 'auto' | number;
  retentionMs: number;
  /** The file to which the report is written as JSON. */
  json?: string;
}

export type Parsed = SoakOptions | { kind: 'help' } | { kind: 'mistake'; message: string };

export const usage = `Usage: npm run soak -- [options]

Runs sandbox, store and gateway as separate processes, and sends requests of merchants: 70 % balances, 25 % first-time
payouts, 5 % duplicates, some of them at the same time as their original. The exit code is 0 if every answer was correct,
the ledger has each payout once, memory stayed flat and no file descriptor was lost, otherwise 1.

Flat means: in the last quarter of the run the lowest heap is at most a tenth and 8 MiB above that of the second quarter. In
runs of 8 minutes or more, the same limit applies to the median of the anonymous memory (RssAnon). File pages, which the
kernel may reclaim at any time, are shown as part of rss and not judged.

  --minutes N        how long (default 30; fractions are taken)
  --store KIND       sqlite (default) or redis: starts a redis-server, appendfsync always
  --rate N           requests a second (default auto: half of the maximum, which is measured first)
  --retention S      seconds after which a record expires (default 60), so that the store reaches a plateau
  --json FILE        writes the report there
  --help             shows this

The ledger is a file in TMPDIR; TMPDIR=/dev/shm avoids the effect of a slow disk. Ctrl-C ends the load early and
judges the results so far.
`;

export function optionsOf(args: string[]): Parsed {
  try {
    const text = { type: 'string' } as const;
    const { values } = parseArgs({
      args,
      options: {
        minutes: text,
        store: text,
        rate: text,
        retention: text,
        json: text,
        help: { type: 'boolean', short: 'h' },
      },
    });
    if (values.help) return { kind: 'help' };
    const { minutes = '30', store = 'sqlite', rate = 'auto', retention = '60', json } = values;
    if (store !== 'sqlite' && store !== 'redis') throw new Error('--store takes sqlite or redis');
    return {
      kind: 'run',
      minutes: numberOf('minutes', minutes, 0.01, 10_000),
      store,
      rate: rate === 'auto' ? rate : numberOf('rate', rate, 1, 1_000_000),
      retentionMs: 1000 * numberOf('retention', retention, 4, 86_400),
      ...(json === undefined ? {} : { json }),
    };
  } catch (error) {
    return { kind: 'mistake', message: (error as Error).message };
  }
}

function numberOf(name: string, text: string, min: number, max: number): number {
  const value = Number(text);
  if (text !== '' && value >= min && value <= max) return value;
  throw new Error(`--${name} takes a number from ${min} to ${max}, not ${JSON.stringify(text)}`);
}
