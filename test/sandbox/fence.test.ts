import { readdirSync, readFileSync } from 'node:fs';
import { expect, it } from 'vitest';

const ROOM = new URL('../../src/sandbox/', import.meta.url);

// As the independent witness of what was paid, the sandbox must share no code, and so no mistake, with what
// it watches.
it.each(readdirSync(ROOM))('%s imports nothing but its own room and Node', (file) => {
  const source = readFileSync(new URL(file, ROOM), 'utf8');
  const imported = [...source.matchAll(/(?:from|import)\s*\(?\s*'([^']+)'/g)].map(
    ([, specifier]) => specifier,
  );
  expect(imported.filter((specifier) => !/^(node:[a-z_/]+|\.\/[a-z-]+\.ts)$/.test(specifier ?? ''))).toEqual(
    [],
  );
});
