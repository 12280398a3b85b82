import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../support/config.ts';
import { ROOT } from '../support/repository.ts';

const REFUSED = [
  "import { setTimeout as sleep } from 'node:timers/promises';",
  "import { randomBytes } from 'node:crypto';",
  'setTimeout(act, 1);',
  'setInterval(act, 1);',
  'performance.now();',
  'process.hrtime.bigint();',
  'AbortSignal.timeout(1);',
  'Date.now();',
  'new Date();',
  'Math.random();',
  'randomBytes(16);',
  'crypto.randomUUID();',
];
const ALLOWED = ['clock.after(1, act);', 'new Date(ms).toISOString();', 'Math.max(1, 2);', 'random.token();'];

/** With a clock and a random of their own. */
const GIVEN = [
  ...['src/ledger/rules.ts', 'src/idempotency/engine.ts', 'src/doubts/lookups.ts', 'src/backend/slots.ts'],
  ...['src/store/types.ts', 'src/store/register.ts', 'src/store/codec.ts'],
];
const OTHERS = ['src/lib/clock.ts', 'src/backend/executor.ts', 'src/store/redis/health.ts'];

/** The lint itself would pass with a plugin that fails: biome notes that, and no error. */
it('the lint refuses sources of time and randomness in what is given a clock and a random', () => {
  const folder = temporaryFolder();
  for (const path of ['biome.json', 'biome.imports.json', 'scripts/lint'])
    cpSync(join(ROOT, path), join(folder, path), { recursive: true });
  for (const path of [...GIVEN, ...OTHERS]) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), [...REFUSED, ...ALLOWED].join('\n'));
  }
  const options = ['--only=plugin', '--reporter=github', '--max-diagnostics=none', '--vcs-enabled=false'];
  const { stdout } = spawnSync(join(ROOT, 'node_modules/.bin/biome'), ['lint', ...options, 'src'], {
    cwd: folder,
    encoding: 'utf8',
  });
  const found = stdout.matchAll(/^::error title=plugin,file=[^,]*\/(src\/[^,]+),line=(\d+)/gm);
  const places = new Set(Array.from(found, ([, file, line]) => `${file}: ${REFUSED[Number(line) - 1]}`));
  expect([...places].toSorted()).toEqual(
    GIVEN.flatMap((file) => REFUSED.map((line) => `${file}: ${line}`)).toSorted(),
  );
});
