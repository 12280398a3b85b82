import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { metricsReference, SECTIONS } from '../../scripts/metrics.ts';
import { UNOBSERVED, WOULD } from '../../src/idempotency/observation.ts';
import { CATALOGUE } from '../../src/observability/catalogue.ts';

it('has the words of the rooms whose events are counted', () => {
  expect(CATALOGUE.observed.labels.would).toEqual(WOULD);
  expect(CATALOGUE.unobserved.labels.reason).toEqual(UNOBSERVED);
});

it('has every command that is timed', () => {
  const source = readFileSync(new URL('../../src/idempotency/measured-store.ts', import.meta.url), 'utf8');
  const commands = [...source.matchAll(/timed\('(\w+)'/g)].map(([, command]) => command);
  expect([...CATALOGUE.storeSeconds.labels.command].toSorted()).toEqual(commands.toSorted());
});

it('is what docs/metrics.md says', () => {
  const page = readFileSync(new URL('../../docs/metrics.md', import.meta.url), 'utf8');
  expect(page, 'run: node scripts/metrics.ts').toBe(metricsReference());
});

it('has a unit in each name, as Prometheus names them', () => {
  for (const { type, name } of Object.values(CATALOGUE)) {
    expect(name).toMatch(/^oncegate_[a-z]+(?:_[a-z]+)*$/);
    if (type === 'counter') expect(name).toMatch(/_total$/);
    else expect(name).not.toMatch(/_(?:total|count|sum|bucket)$/);
    if (type === 'histogram') expect(name).toMatch(/_seconds$/);
  }
});

it('has a heading on the page for each of its groups', () => {
  const source = readFileSync(new URL('../../src/observability/catalogue.ts', import.meta.url), 'utf8');
  const [, groups = ''] = source.split('export const CATALOGUE = {');
  const firsts = [...groups.matchAll(/^ {2}\/\/ .+\n {2}(\w+):/gm)].map(([, field]) => field);
  expect(firsts).toEqual(Object.keys(SECTIONS));
  expect(firsts[0]).toBe(Object.keys(CATALOGUE)[0]);
});
