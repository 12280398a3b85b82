import { expect, it } from 'vitest';
import { TIMED } from '../../src/ledger/measured.ts';
import { CATALOGUE } from '../../src/telemetry/catalogue.ts';

it('has every command that is timed', () => {
  const commands = new Set(Object.values(TIMED));
  expect([...CATALOGUE.storeSeconds.labels.command].toSorted()).toEqual([...commands].toSorted());
});

it('has a unit in each name, as Prometheus names them', () => {
  for (const { type, name } of Object.values(CATALOGUE)) {
    expect(name).toMatch(/^oncegate_[a-z]+(?:_[a-z]+)*$/);
    if (type === 'counter') expect(name).toMatch(/_total$/);
    else expect(name).not.toMatch(/_(?:total|count|sum|bucket)$/);
    if (type === 'histogram') expect(name).toMatch(/_seconds$/);
  }
});
