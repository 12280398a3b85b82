import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it, onTestFinished } from 'vitest';
import { declarationOf, requestSteps } from '../support/architecture.ts';
import { storeKinds } from '../support/stores.ts';
import type { Walk } from './walk.ts';

const PROGRAM = fileURLToPath(new URL('./walk.ts', import.meta.url));

/** Whoever follows a request through the code reads this much. It may become less. */
const MOST = {
  sqlite: {
    'first payout': { functions: 273, files: 60 },
    replay: { functions: 208, files: 52 },
    balance: { functions: 125, files: 33 },
  },
  redis: {
    'first payout': { functions: 276, files: 59 },
    replay: { functions: 227, files: 53 },
    balance: { functions: 125, files: 33 },
  },
  postgres: {
    'first payout': { functions: 269, files: 59 },
    replay: { functions: 223, files: 53 },
    balance: { functions: 125, files: 33 },
  },
};

it.each(storeKinds)(
  'on %s, a request enters the functions that the documents say, and no more of them than before',
  async (kind) => {
    const walking = promisify(execFile)(process.execPath, [PROGRAM, kind, '--json']);
    // A request that needs a held timer never ends.
    onTestFinished(() => void walking.child.kill());
    const { stdout } = await walking;
    const walks: Record<string, Walk> = JSON.parse(stdout);
    for (const [request, most] of Object.entries(MOST[kind])) {
      const files = Object.values(walks[request] ?? {});
      expect(files.length, `files of a ${request}: npm run walk`).toBeLessThanOrEqual(most.files);
      expect(files.length).toBeGreaterThan(10);
      expect(files.flat().length, `functions of a ${request}: npm run walk`).toBeLessThanOrEqual(
        most.functions,
      );
    }
    const steps = requestSteps();
    for (const { file, source, defined } of steps) {
      const { firstLine = 0, lastLine = 0 } = declarationOf(source, defined) ?? {};
      const lines = (walks['first payout']?.[file] ?? []).map((one) => Number(one.split(':').at(-2)));
      const isEntered = lines.some((line) => line >= firstLine && line <= lastLine);
      const hasStar = steps.some((one) => one.file === file && one.defined === defined && one.isEntered);
      expect(isEntered, `a first payout enters ${defined} of ${file}, as docs/architecture.md says`).toBe(
        hasStar,
      );
    }
  },
);
