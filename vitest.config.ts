import { defineConfig } from 'vitest/config';

/** Suites that measure how long something takes. Next to others they would measure those. */
const measuring = [
  ...['test/faults/abuse/**/*.test.ts', 'test/linear/**/*.test.ts'],
  'test/e2e/http/websocket-revoked.test.ts',
];

export default defineConfig({
  test: {
    pool: 'forks',
    maxConcurrency: 20,
    testTimeout: 30_000,
    hookTimeout: 30_000,
    // Servers are started and killed by the tests: a run that leaves one behind is a failed run.
    teardownTimeout: 10_000,
    allowOnly: false,
    passWithNoTests: false,
    projects: [
      {
        extends: true,
        test: {
          name: 'together',
          include: ['test/**/*.test.ts'],
          // The clients' folder has its own packages, and some of those come with tests.
          exclude: [...measuring, '**/node_modules/**'],
          // One more than two cores: much of the time is waiting for leases and time limits.
          maxWorkers: 3,
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
