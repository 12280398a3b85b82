import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

// Compiled modules are kept from one process and thread to the next: tests start hundreds of them.
process.env.NODE_COMPILE_CACHE ??= fileURLToPath(
  new URL('node_modules/.cache/node-compile', import.meta.url),
);

/** Suites that measure how long something takes, or load the machine themselves. Next to others they would measure those. */
const measuring = [
  'test/faults/abuse/**/*.test.ts',
  ...[
    'e2e/http/websocket-revoked',
    'e2e/observability/alerts',
    'e2e/process/keys-in-force',
    'e2e/records/copy',
  ].map((name) => `test/${name}.test.ts`),
];
/** Suites that wait for a minute, or work for half of one: begun late, they would run on when all others have ended. */
const longest = [
  ...['faults/chaos-sqlite', 'faults/chaos-redis', 'contract/sqlite', 'faults/interleavings/interleavings'],
  ...['contract/redis', 'contract/redis-topologies', 'regression/acknowledged-result-was-given-up'],
  ...['e2e/idempotency/paused-gateway', 'e2e/idempotency/slots', 'e2e/process/workers-death'],
].map((name) => `/test/${name}.test.ts`);

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const first = longest.flatMap((end) => sorted.filter(({ moduleId }) => moduleId.endsWith(end)));
    return [...first, ...sorted.filter((file) => !first.includes(file))];
  }
}

const unit = ['test/unit/**/*.test.ts'];

/** A file for each core, and at most eight. With more, leases and time limits of a second end before a busy process has run. */
const WORKERS = Math.max(2, Math.min(8, availableParallelism()));

export default defineConfig({
  test: {
    pool: 'forks',
    maxConcurrency: 20,
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
          maxWorkers: WORKERS,
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: {
          name: 'together',
          include: ['test/**/*.test.ts'],
          // The clients' folder has its own packages, and some of those come with tests.
          exclude: [...unit, ...measuring, '**/node_modules/**'],
          maxWorkers: WORKERS,
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: { name: 'alone', include: measuring, maxWorkers: 1, sequence: { groupOrder: 2 } },
      },
    ],
  },
});
