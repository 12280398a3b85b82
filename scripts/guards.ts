import { accessGuards } from './guards/access.ts';
import { engineGuards } from './guards/engine.ts';
import { fenceGuards } from './guards/fence.ts';
import { gatewayGuards } from './guards/gateway.ts';
import { redisGuards } from './guards/redis.ts';
import { requestGuards } from './guards/requests.ts';
import { sqliteGuards } from './guards/sqlite.ts';
import { targetGuards } from './guards/targets.ts';

/** One guard of the promise, a mutation that takes it out, and the test that must notice. */
export interface Guard {
  /** What goes wrong without the guard. */
  without: string;
  file: string;
  /** Occurs exactly once in the file. */
  text: string;
  replacement: string;
  test: string;
  /** Which of the file's tests, by a part of their full names: `suite > test`. */
  named: string;
}

/** docs/adr/0010-guards-and-their-tests.md has one line for each. */
export const guards: readonly Guard[] = [
  ...fenceGuards,
  ...engineGuards,
  ...gatewayGuards,
  ...requestGuards,
  ...sqliteGuards,
  ...redisGuards,
  ...accessGuards,
  ...targetGuards,
];
