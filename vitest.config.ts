import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    pool: 'forks',
    // One more than two cores: much of the time is waiting for leases and time limits.
    maxWorkers: 3,
    maxConcurrency: 20,
    testTimeout: 30_000,
    hookTimeout: 30_000,
    // Servers are started and killed by the tests: a run that leaves one behind is a failed run.
    teardownTimeout: 10_000,
    allowOnly: false,
    passWithNoTests: false,
  },
});
