import { existsSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { run } from '../../support/command.ts';
import { blocksOf, commandsOf, isShell } from '../../support/documents.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const DOCUMENTS = globSync(['*.md', 'docs/**/*.md', 'grafana/*.md', 'bench/**/*.md', 'test/*.md'], {
  cwd: ROOT,
  exclude: (path) => path.includes('node_modules'),
});

/** The tests that run commands, and under which headings. They name the document, and the heading. */
const RUN_BY_SECTION: Record<string, Record<string, string[]>> = {
  'test/e2e/docs/deploying.test.ts': {
    'docs/deploying.md': [
      ...['1. Install', '2. Redis', '3. Configure', '4. Start', '5. See that it protects', '6. Prometheus'],
      ...['Then', 'Secret keys in a file'],
    ],
  },
  'test/e2e/docs/merchants.test.ts': { 'docs/merchants.md': ['The first payout', 'Try your client'] },
  'test/e2e/docs/operations.test.ts': {
    'docs/operations.md': [
      ...['Alerts', 'Inspect and back up SQLite', 'Move the records to another store'],
      ...["Purge a merchant's responses", 'Resolve a key in doubt', 'Rotate secret keys'],
      'Run everything with compose',
    ],
    'grafana/README.md': ['Your runbook and your logs'],
  },
  'test/e2e/records/after-an-incident.test.ts': {
    'docs/operations.md': ['After an incident: many keys at once'],
  },
};

/** Whole documents that a test runs. */
const RUN_WHOLE: Record<string, string> = { 'README.md': 'test/e2e/docs/readme.test.ts' };

/** Commands that a test runs in another form, by their beginning; with what the test has in their place. */
const RUN_OTHERWISE: Record<string, [test: string, has: string]> = {
  'npm run package': ['test/e2e/embedding/tarball.test.ts', 'scripts/package.ts'],
  'npm run sbom': ['test/e2e/package/sbom.test.ts', 'scripts/sbom.ts'],
  'node scripts/interfaces.ts': ['test/unit/interfaces.test.ts', 'scripts/interfaces.ts'],
  'node scripts/version.ts': ['test/unit/versions.test.ts', 'scripts/version.ts'],
  // As a dry run.
  'kubectl create secret': ['test/e2e/docs/deploying.test.ts', 'kubectl create secret'],
  // Bare, it writes into the checkout.
  'node grafana/generate.ts': ['test/e2e/observability/dashboards.test.ts', 'grafana/generate.ts'],
};

/** Commands that cannot run in a test, by their beginning, and why. */
const NOT_RUN: Record<string, string> = {
  'cosign ': 'needs a registry and keys',
  // test/e2e/deploy/image.test.ts runs the commands of the Dockerfile.
  'docker buildx': 'needs a container engine',
  'docker run': 'needs a container engine',
  'git switch': 'changes the checkout',
  'git verify-tag': 'needs a signed tag',
  // test/e2e/deploy/manifests.test.ts builds what it applies.
  'kubectl apply': 'needs a cluster',
  'npm audit signatures': 'needs a published package',
  'npm publish': 'needs a registry and keys',
  'npm run format': 'changes the checkout',
  'npm run lint': 'runs beside the tests',
  'npm run test:fast': 'runs this test',
  'npm run typecheck': 'runs beside the tests',
  'npm test': 'runs this test',
  'npx vitest run': 'runs this test',
  'ssh ': 'needs another machine',
};

const beginning = (list: object, command: string) =>
  Object.keys(list).find((begin) => command.startsWith(begin));

describe('every command of the documents', () => {
  const blocks = DOCUMENTS.flatMap((document) => blocksOf(document)).filter(isShell);
  const sections = Object.entries(RUN_BY_SECTION).flatMap(([test, documents]) =>
    Object.entries(documents).flatMap(([document, headings]) =>
      headings.map((heading) => ({ test, document, heading })),
    ),
  );
  const isRun = (document: string, heading: string) =>
    document in RUN_WHOLE || sections.some((one) => one.document === document && one.heading === heading);
  const others = blocks
    .filter(({ document, heading }) => !isRun(document, heading))
    .flatMap((block) => commandsOf(block).map(({ text }) => ({ ...block, text })));

  it('is in a form that these tests read', () => {
    // A fence of tildes or in a quotation, or one with another name of a shell, would hide its commands.
    const fences = (document: string) => read(document).match(/^[> ]*(?:`{3,}|~{3,})/gm)?.length ?? 0;
    expect(DOCUMENTS.filter((document) => fences(document) !== 2 * blocksOf(document).length)).toEqual([]);
    const all = DOCUMENTS.flatMap((document) => blocksOf(document));
    const languages = new Set(all.map(({ language }) => language));
    expect([...languages].sort()).toEqual(['', 'console', 'js', 'json', 'sh', 'text', 'yaml']);
    expect(all.filter((block) => !isShell(block) && /^\$ /m.test(block.text))).toEqual([]);
    for (const document of Object.keys(RUN_WHOLE))
      expect(
        blocksOf(document)
          .filter(isShell)
          .map(({ language }) => language),
      ).not.toContain('sh');
  });

  it('is run by a test, or is in the list of those that cannot run', () => {
    expect(blocks.length).toBeGreaterThan(30);
    const neither = others.filter(({ text }) => !beginning(RUN_OTHERWISE, text) && !beginning(NOT_RUN, text));
    expect(neither.map(({ document, heading, text }) => `${document}, ${heading}: ${text}`)).toEqual([]);
  });

  it('is in the lists only while a document has it', () => {
    const unused = (list: object) =>
      Object.keys(list).filter((begin) => !others.some(({ text }) => text.startsWith(begin)));
    expect([...unused(RUN_OTHERWISE), ...unused(NOT_RUN)]).toEqual([]);
    const gone = sections.filter(
      ({ document, heading }) =>
        !blocks.some((block) => block.document === document && block.heading === heading),
    );
    expect(gone).toEqual([]);
  });

  it('is run by a test that names its document and its heading', () => {
    const pairs = [
      ...sections.flatMap(({ test, document, heading }) => [
        [test, document],
        [test, heading],
      ]),
      ...Object.entries(RUN_WHOLE).map(([document, test]) => [test, document]),
      ...Object.values(RUN_OTHERWISE),
    ];
    const missing = pairs.filter(
      ([test = '', name = '']) => !existsSync(join(ROOT, test)) || !read(test).includes(name),
    );
    expect(missing).toEqual([]);
  });

  it('names files of the repository that there are', () => {
    // The names of images have the form of paths.
    const commands = others.filter(({ text }) => !text.startsWith('docker '));
    const paths = commands.flatMap(({ text }) =>
      [...text.matchAll(/(?<![\w/])(?:test|deploy|grafana|config|scripts)\/[\w./-]+/g)].map(([path]) => path),
    );
    expect(paths.length).toBeGreaterThan(5);
    expect(paths.filter((path) => !existsSync(join(ROOT, path)))).toEqual([]);
    const [, part = ''] = /vitest run test\/engine -t '(.+)'/.exec(read('test/README.md')) ?? [];
    const tests = globSync('test/engine/*.test.ts', { cwd: ROOT });
    expect(tests.some((test) => read(test).includes(part) && part !== '')).toBe(true);
  });

  it('of oncegate, within a sentence too, has actions and options that there are', async () => {
    const more = globSync(['config/**/*.yaml', 'deploy/**/*.*'], { cwd: ROOT });
    const texts = [...DOCUMENTS.filter((path) => path !== 'CHANGELOG.md'), ...more].flatMap((path) =>
      [...read(path).matchAll(/`(oncegate [^`]+)`|^# {2,}(oncegate [\w -]+)/gm)].map(
        ([, inline, comment]) => inline ?? comment ?? '',
      ),
    );
    const commands = [...new Set(texts)].map((text) => {
      const [, name = '', action] = /^oncegate ([a-z]+)(?: ([a-z][a-z-]*))?/.exec(text) ?? [];
      return { text, name, action, options: text.match(/--[a-z-]+/g) ?? [] };
    });
    const names = [...new Set(commands.map(({ name }) => name))];
    const helps = new Map(
      await Promise.all(
        names.map(async (name) => {
          const { code, stdout } = await run([...(name ? [name] : []), '--help']);
          expect([name, code]).toEqual([name, 0]);
          return [name, stdout] as const;
        }),
      ),
    );
    expect(names).toContain('records');
    const wrong = commands.filter(({ name, action, options }) => {
      const help = helps.get(name) ?? '';
      const isAction = action === undefined || help.includes(`oncegate ${name} ${action}`);
      return !isAction || options.some((option) => option !== '--help' && !help.includes(option));
    });
    expect(wrong).toEqual([]);
  });
});
