import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

// Compiled modules are kept from one process and thread to the next: tests start hundreds of them.
process.env.NODE_COMPILE_CACHE ??= fileURLToPath(
  new URL('node_modules/.cache/node-compile', import.meta.url),
);

const files = (...names: string[]): string[] => names.map((name) => `test/${name}.test.ts`);

/**
 * Only `npm run test:all` runs these. They need Chromium, Prometheus, other servers and languages, libfiu, faketime or further
 * packages from npm (test/README.md has the table), or take a minute. What a payment meets is never proved here alone.
 */
const more = files(
  ...[
    'clients/clients',
    'contract/{sqlite-io-errors,postgres-pooler}',
    'e2e/console/browser',
    'e2e/deploy/*',
    'e2e/docs/*',
  ],
  ...[
    'e2e/embedding/tarball',
    'e2e/observability/{in-prometheus,promtool,what-merchants-get}',
    'examples/examples',
  ],
  ...['faults/chaos-{none,redis,sqlite}'],
);
/** Load is measured. The others need the whole machine: one starts Node 200 times, and beside that PostgreSQL exceeds time limits. */
const moreAlone = files('faults/{abuse/load,chaos-postgres}', 'e2e/embedding/transaction-killed-often');

/** Suites that measure how long something takes. Next to others they would measure those. */
const measuring = files('e2e/process/keys-in-force');

/** How many seconds each long file took when `npm test -- --record` ran last. */
const times: Record<string, number> = JSON.parse(
  readFileSync(new URL('test/times.json', import.meta.url), 'utf8'),
);

/** Begun late, a long file would run on when all others have ended. */
class LongestFirst extends BaseSequencer {
  override async sort(specifications: TestSpecification[]): Promise<TestSpecification[]> {
    const secondsOf = ({ moduleId }: TestSpecification) =>
      times[moduleId.slice(moduleId.lastIndexOf('/test/') + 6)] ?? 0;
    return specifications.toSorted((a, b) => secondsOf(b) - secondsOf(a));
  }
}

/** The command that these suites start. */
const globalSetup = 'test/support/bundle.ts';

const unit = ['test/unit/**/*.test.ts'];

/** One process runs file after file: to load all modules and to compile them for each file would take a quarter of the run. */
const isolate = false;

/**
 * How many files run at once. Half of their time is waiting, so there are two more than there are cores. With many more, leases and
 * time limits of a second end before a busy process has run.
 */
const WORKERS = Math.min(8, availableParallelism() + 2);

export default defineConfig({
  test: {
    pool: 'forks',
    maxConcurrency: 20,
    setupFiles: ['test/support/each-file.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Servers are started and killed by the tests: a run that leaves one behind is a failed run.
    teardownTimeout: 10_000,
    allowOnly: false,
    passWithNoTests: false,
    sequence: { sequencer: LongestFirst },
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: unit,
          setupFiles: ['test/support/no-io.ts'],
          isolate,
          maxWorkers: WORKERS,
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: {
          name: 'together',
          globalSetup,
          isolate,
          include: ['test/**/*.test.ts'],
          // The clients' folder has its own packages, and some of those come with tests.
          exclude: [...unit, ...measuring, ...more, ...moreAlone, '**/node_modules/**'],
          maxWorkers: WORKERS,
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: { name: 'more', globalSetup, include: more, maxWorkers: WORKERS, sequence: { groupOrder: 1 } },
      },
      {
        extends: true,
        test: {
          name: 'more-alone',
          globalSetup,
          include: moreAlone,
          maxWorkers: 1,
          sequence: { groupOrder: 3 },
        },
      },
      {
        extends: true,
        test: { name: 'alone', globalSetup, include: measuring, maxWorkers: 1, sequence: { groupOrder: 2 } },
      },
    ],
  },
});
