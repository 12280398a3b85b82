import { readdirSync, readFileSync } from 'node:fs';
import { expect, it } from 'vitest';

const SANDBOX = new URL('../../src/sandbox/', import.meta.url);

// The ledger is the evidence of how often the gateway had something executed. With shared code, a bug could be in both.
it('the sandbox imports only its own files and Node', () => {
  const files = readdirSync(SANDBOX);
  expect(files).toContain('ledger.ts');
  const foreign = files.flatMap((file) => {
    const source = readFileSync(new URL(file, SANDBOX), 'utf8');
    return [...source.matchAll(/(?:from|import)\s*\(?\s*'([^']+)'/g)]
      .map(([, specifier = '']) => specifier)
      .filter((specifier) => !/^(node:[a-z_/]+|\.\/[a-z-]+\.ts)$/.test(specifier))
      .map((specifier) => `${file} imports ${specifier}`);
  });
  expect(foreign).toEqual([]);
});
