import { existsSync, globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { parseConfig } from '../../src/config/load.ts';
import { problem, problemCodes } from '../../src/kernel/problem.ts';
import { Metrics } from '../../src/observability/metrics.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const DOCUMENTS = globSync(['*.md', 'docs/**/*.md', 'grafana/*.md', 'bench/peers/*.md', 'test/*.md'], {
  cwd: ROOT,
});
const ADRS = DOCUMENTS.filter((path) => /^docs\/adr\/\d/.test(path));

const withoutCode = (markdown: string) => markdown.replace(/```.*?```/gs, '').replace(/`[^`\n]*`/g, '');

/** The anchors that GitHub gives to the headings of a document. */
const anchorsOf = (path: string) =>
  [...read(path).matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  );

/** `target` is a path, perhaps with an anchor. */
const leadsNowhere = (target: string) => {
  const [path = '', anchor] = target.split('#');
  if (!existsSync(join(ROOT, path))) return true;
  return anchor !== undefined && !anchorsOf(path).includes(anchor);
};

/** Whether a source defines a function, method, class, interface or constant of this name. */
function defines(source: string, name: string): boolean {
  const declared = `(?:function|class|interface|const|type) ${name}\\b`;
  const method = `^\\s*(?:async )?${name}(?:<[^>]*>)?\\((?:.*[^;])?$`;
  return new RegExp(`${declared}|${method}`, 'm').test(source);
}

describe('documents', () => {
  it('docs/merchants.md explains every answer of the gateway, and no other, with its status', () => {
    const rows = read('docs/merchants.md')
      .split('\n')
      .filter((line) => line.startsWith('| `'))
      .map((line) => line.split('|'));
    const codesOf = ([, codes = '']: string[]) => [...codes.matchAll(/`([a-z_]+)`/g)].map(([, code]) => code);
    expect(rows.flatMap(codesOf).sort()).toEqual([...problemCodes].sort());
    for (const row of rows)
      for (const code of codesOf(row))
        expect(row[2]?.split(',').map(Number), code).toContain(
          problem(code as (typeof problemCodes)[number], '').status,
        );
  });

  it('docs/operations.md names every metric, and the documents name no other', () => {
    const { registry } = new Metrics();
    const metrics = registry.getMetricsAsArray().map(({ name }) => name);
    const namesIn = (path: string) =>
      [...read(path).matchAll(/`(oncegate_[a-z_]+)/g)].map(([, name = '']) => name);
    const ours = metrics.filter((name) => name.startsWith('oncegate_'));
    expect([...new Set(namesIn('docs/operations.md'))].sort()).toEqual(ours.sort());
    // The changelog has the names of earlier versions.
    const others = DOCUMENTS.filter((path) => path !== 'CHANGELOG.md').flatMap(namesIn);
    expect(others.filter((name) => !metrics.includes(name))).toEqual([]);
  });

  it('docs/operations.md has the steps of every alert as the rules have them', () => {
    const { groups } = parse(read('config/prometheus.rules.yaml'));
    const alerts = groups.flatMap(({ rules }: { rules: object[] }) =>
      rules.filter((rule) => 'alert' in rule),
    );
    const words = (text: string) => text.replace(/\s+/g, ' ').trim();
    const expected = alerts.map(({ alert, labels, annotations }: Alert) => {
      const description = annotations.description
        .replace(/\{\{ \$value[^}]*\}\}/g, 'N')
        .replace(/\{\{ \$labels\.(\w+) \}\}/g, (_, label: string) => label.toUpperCase());
      return `${alert} **${labels.severity}.** ${words(description)} ${words(annotations.runbook)}`;
    });
    const [, section = ''] = read('docs/operations.md').split(/^## Alerts$/m);
    const [inAlerts = ''] = section.split(/^## /m);
    expect(inAlerts.split(/^### /m).slice(1).map(words)).toEqual(expected);
  });

  it('docs/configuration.md shows operations that are valid', () => {
    const [, example = ''] = read('docs/configuration.md').match(/```yaml\n(operations:.*?)```/s) ?? [];
    const { operations } = parseConfig(`upstream: { url: "http://127.0.0.1:9000" }\n${example}`, {});
    expect(operations.map(({ name }) => name)).toEqual(['withdraw', 'refund']);
  });

  it('name files and commands that there are', () => {
    expect(DOCUMENTS).toContain('docs/merchants.md');
    const { scripts } = JSON.parse(read('package.json'));
    const missing = DOCUMENTS.flatMap((document) => {
      const text = read(document);
      const files = text.matchAll(/`((?:src|test|scripts|bench|config|docs|grafana)\/[\w./-]+\.\w+)`/g);
      const commands = text.matchAll(/npm run (?:--silent )?([a-z:]+)/g);
      return [
        ...[...files].map(([, file = '']) => file).filter((file) => !existsSync(join(ROOT, file))),
        ...[...commands].map(([, name = '']) => name).filter((name) => !(name in scripts)),
      ].map((name) => `${document}: ${name}`);
    });
    expect(missing).toEqual([]);
  });

  it('link to files and sections that there are', () => {
    const links = DOCUMENTS.flatMap((document) =>
      [...withoutCode(read(document)).matchAll(/\]\((?!https?:)([^)\s]+)\)/g)].map(([, target = '']) => ({
        document,
        target: target.startsWith('#') ? `${document}${target}` : join(dirname(document), target),
      })),
    );
    expect(links.length).toBeGreaterThan(20);
    expect(links.filter(({ target }) => leadsNowhere(target))).toEqual([]);
  });

  it('docs/architecture.md names functions that there are', () => {
    const named = [...read('docs/architecture.md').matchAll(/\[`([^`]+)`\]\(\.\.\/([^)]+)\)/g)];
    expect(named.length).toBeGreaterThan(40);
    const missing = named.filter(([, name = '', file = '']) => !defines(read(file), name));
    expect(missing.map(([, name, file]) => `${name} in ${file}`)).toEqual([]);
  });

  it('are there where the sources, the alerts and the examples name them', () => {
    const files = globSync(['{src,config,grafana,bench,scripts,test}/**/*.{ts,mjs,lua,yaml}', 'Dockerfile'], {
      cwd: ROOT,
      exclude: (path) => path.endsWith('node_modules'),
    });
    expect(files).toContain('config/prometheus.rules.yaml');
    const names = files.flatMap((file) =>
      [...read(file).matchAll(/\bdocs\/[\w/-]+\.(?:md|svg)(?:#[\w-]+)?/g)].map(([target]) => ({
        file,
        target,
      })),
    );
    // Packages of others have folders of that name too.
    const ours = names.filter(({ file }) => !file.startsWith('bench/peers/'));
    expect(ours.length).toBeGreaterThan(5);
    expect(ours.filter(({ target }) => leadsNowhere(target))).toEqual([]);
  });

  it('of decisions have a number, a status and a date, and the sources name no others', () => {
    for (const path of ADRS) {
      const [, number] = path.match(/^docs\/adr\/0*(\d+)-[a-z-]+\.md$/) ?? [];
      expect(read(path), path).toMatch(
        new RegExp(
          `^# ${number}\\. .+\n\n\\*\\*Status\\.\\*\\* (?:Accepted|Replaced by ADR \\d+), \\d{4}-\\d\\d-\\d\\d\\.`,
        ),
      );
    }
    const numbers = ADRS.map((path) => Number(path.match(/\d+/)?.[0]));
    expect(numbers.sort((a, b) => a - b)).toEqual(numbers.map((_, at) => at + 1));
    const named = [...DOCUMENTS, ...globSync('{src,test}/**/*.ts', { cwd: ROOT })].flatMap((path) =>
      [...read(path).matchAll(/\bADR (\d+)/g)].map(([, number]) => Number(number)),
    );
    expect(named.filter((number) => !numbers.includes(number))).toEqual([]);
  });
});

interface Alert {
  alert: string;
  labels: { severity: string };
  annotations: { description: string; runbook: string };
}
