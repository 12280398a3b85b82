import { createRequire } from 'node:module';
import { pino as ours } from 'pino';
import { expect, it } from 'vitest';
import { requestLogger } from '../../src/telemetry/logger.ts';

const require = createRequire(import.meta.url);

/** A second copy of pino, as npm installs it for an application that needs another version. */
function anotherPino(): typeof ours {
  for (const path of Object.keys(require.cache)) if (path.includes('/pino/')) delete require.cache[path];
  return require('pino').pino;
}

it('writes the lines of requests to a logger of another copy of pino', () => {
  const pino = anotherPino();
  expect(pino.symbols.streamSym).not.toBe(ours.symbols.streamSym);
  const lines: object[] = [];
  const logger = pino({ base: null }, { write: (line: string) => lines.push(JSON.parse(line)) });
  requestLogger(logger)({ status: 201 });
  expect(lines).toEqual([expect.objectContaining({ status: 201, msg: 'request' })]);
});
