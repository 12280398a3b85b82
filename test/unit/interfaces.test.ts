import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { INTERFACES, type Interfaces, interfaces, publicDeclarations } from '../../scripts/interfaces.ts';
import { bearerOptions } from '../../src/middleware/bearer-auth.ts';
import { forwardOptions } from '../../src/middleware/forward.ts';
import { handlerOptions } from '../../src/middleware/handler-options.ts';

it('every option, default, problem code, metric, line of the log, export and command of the last release is still there', () => {
  const promised: Interfaces = JSON.parse(readFileSync(INTERFACES, 'utf8'));
  const now = interfaces();
  expect(Object.keys(promised)).toEqual(Object.keys(now));
  for (const [what, names] of Object.entries(promised)) {
    expect(names.length, what).toBeGreaterThan(10);
    const there = new Set(now[what]);
    const gone = names.filter((name) => !there.has(name));
    expect(gone, `${what}: a minor version must keep them (docs/releasing.md, Versions)`).toEqual([]);
  }
});

describe('the declarations of the package', () => {
  const declarations = publicDeclarations();

  it('have a docstring for each export and each member', () => {
    expect(declarations.length).toBeGreaterThan(30);
    const missing = declarations.flatMap(({ name, docs, members }) => [
      ...(docs === '' ? [name] : []),
      ...[...members].filter(([, about]) => about === '').map(([member]) => `${name}.${member}`),
    ]);
    expect(missing).toEqual([]);
  });

  it('have every option that is accepted, and no other', () => {
    const membersOf = (interfaceName: string) =>
      [...(declarations.find(({ name }) => name === interfaceName)?.members.keys() ?? [])].sort();
    const { limits, ...handler } = handlerOptions.in.shape;
    // The schemas have what is plain values. Only the gateway passes requests through.
    const { maxStreams: _, ...forward } = forwardOptions.shape;
    const functions = ['store', 'merchant', 'lookup', 'body', 'metrics', 'logger'];
    expect(membersOf('IdempotencyOptions')).toEqual([...Object.keys(handler), 'limits', ...functions].sort());
    expect(membersOf('IdempotencyLimits')).toEqual(Object.keys(limits.unwrap().shape).sort());
    expect(membersOf('ForwardOptions')).toEqual([...Object.keys(forward), 'target'].sort());
    expect(membersOf('BearerAuthOptions')).toEqual([...Object.keys(bearerOptions.shape), 'logger'].sort());
  });
});
