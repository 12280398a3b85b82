import { readdirSync } from 'node:fs';
import { expect, it } from 'vitest';
import { GENERATED, read } from '../../scripts/generate.ts';

it.each([...GENERATED.keys()])('%s is what its sources say', (path) => {
  const text = read(path);
  expect(GENERATED.get(path)?.(text), 'run: npm run generate').toBe(text);
});

it('grafana/dashboards has no file without a source', () => {
  const folder = 'grafana/dashboards/';
  const named = [...GENERATED.keys()].filter((path) => path.startsWith(folder));
  expect(
    readdirSync(new URL(`../../${folder}`, import.meta.url))
      .map((name) => folder + name)
      .sort(),
  ).toEqual(named.sort());
});
