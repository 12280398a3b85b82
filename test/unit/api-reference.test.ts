import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { bundled, digestLine, publicDeclarations, REFERENCE } from '../../scripts/api/declarations.ts';
import { readable } from '../../scripts/api/markdown.ts';
import { bearerOptions, forwardOptions, handlerOptions } from '../../src/embedding/options.ts';

const PAY = `import { type IncomingMessage, type Server } from 'node:http';
import type { Store } from '../store.ts';
/** The outcome. */
export type Outcome = 
/** It was paid. */
{
    kind: 'paid';
}
 | undefined;
/** What a store needs. */
export declare class Internal {
    readonly store: Store;
}
/**
 * Pays.
 *
 * @throws {TypeError} if it is invalid
 */
export declare function pay(req: IncomingMessage): Outcome;
export type Payment = z.input<typeof schema>;
`;
const INDEX = `/** The package. */
export { type Outcome, pay } from './pay.ts';
export type { Payment, } from './pay.ts';
`;
const from = (index: string, pay: string) => bundled((path) => (path === 'index.ts' ? index : pay));

const declarations = publicDeclarations();

/** The names of the members of a public interface. */
function membersOf(name: string): string[] {
  const [, members = ''] =
    declarations.match(new RegExp(`^export interface ${name} .*?\\{$(.*?)^\\}`, 'ms')) ?? [];
  return [...members.matchAll(/^ {4}(\w+)\??:/gm)].map(([, member = '']) => member).sort();
}

it('docs/api/README.md belongs to the sources', () => {
  const lines = readFileSync(REFERENCE, 'utf8').split(/(?<=\n)/);
  const markdown = lines.slice(0, -1).join('');
  expect(lines.at(-1), 'run: npm run api').toBe(digestLine(declarations, markdown));
});

it('describes every option that is accepted, and no other', () => {
  const { limits, ...handler } = handlerOptions.shape;
  // The schemas have what is plain values. Only the gateway passes requests through.
  const { maxStreams: _, ...forward } = forwardOptions.shape;
  const functions = ['store', 'merchant', 'lookup', 'body', 'metrics', 'logger'];
  expect(membersOf('IdempotencyOptions')).toEqual([...Object.keys(handler), 'limits', ...functions].sort());
  expect(membersOf('IdempotencyLimits')).toEqual(Object.keys(limits.unwrap().shape).sort());
  expect(membersOf('ForwardOptions')).toEqual([...Object.keys(forward), 'target'].sort());
  expect(membersOf('BearerAuthOptions')).toEqual([...Object.keys(bearerOptions.shape), 'logger'].sort());
});

it('is made of what the package exports, with its docstrings, and of nothing else', () => {
  expect(from(INDEX, PAY)).toBe(`/** The package. */
import type { IncomingMessage } from 'node:http';
/** The outcome. */
export type Outcome = 
/** It was paid. */
{
    kind: 'paid';
}
 | undefined;
/**
 * Pays.
 *
 * @throws \`TypeError\` if it is invalid
 */
export declare function pay(req: IncomingMessage): Outcome;
export interface Payment {}
`);
});

it('is not made of a file whose exports it cannot read', () => {
  expect(() => from(`${INDEX}export * from './other.ts';\n`, PAY)).toThrow('src/index.ts must only have');
  expect(() => from(INDEX.replace('pay }', 'payAll }'), PAY)).toThrow('src/pay.ts does not declare payAll');
});

it('has links that lead to the heading that is meant', () => {
  const page =
    '# API\n\n[Pay](#wrong)\n\n## Functions\n\n### pay()\n\nPays.\n\n## Interfaces\n\n### Pay\n\nSee docs/merchants.md.';
  expect(readable(page)).toContain(
    '\n\n[Pay](#pay-1)\n\nFunctions: [pay](#pay)\n\nInterfaces: [Pay](#pay-1)\n\n',
  );
  expect(readable(page)).toContain('See [docs/merchants.md](../merchants.md).');
  expect(() => readable(page.replace('[Pay]', '[Paid]'))).toThrow('a link to Paid');
});
