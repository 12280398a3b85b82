import { existsSync, globSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { alertPages } from '../../scripts/generate.ts';
import { parseConfig } from '../../src/config/load.ts';
import { problem } from '../../src/lib/problem.ts';
import { type ProblemCode, problemCodes } from '../../src/lib/problem-table.ts';
import { OUTCOMES } from '../../src/telemetry/label-values.ts';
import { AllMetrics } from '../../src/telemetry/metrics.ts';
import { anchorsOf, leadsNowhere } from '../support/anchors.ts';
import { ROOT, read } from '../support/repository.ts';

const DOCUMENTS = globSync(['*.md', 'docs/**/*.md', 'grafana/*.md', 'bench/peers/*.md', 'test/*.md'], {
  cwd: ROOT,
});
const ADRS = DOCUMENTS.filter((path) => /^docs\/adr\/\d/.test(path));

const withoutCode = (markdown: string) => markdown.replace(/```.*?```/gs, '').replace(/`[^`\n]*`/g, '');

describe('documents', () => {
  it('docs/metrics.md names every metric, and the documents name no other', () => {
    const { registry } = new AllMetrics();
    const metrics = registry.getMetricsAsArray().map(({ name }) => name);
    const namesIn = (path: string) =>
      [...read(path).matchAll(/`(oncegate_[a-z_]+)/g)].map(([, name = '']) => name);
    const ours = metrics.filter((name) => name.startsWith('oncegate_'));
    expect([...new Set(namesIn('docs/metrics.md'))].sort()).toEqual(ours.sort());
    // The changelog has the names of earlier versions.
    const others = DOCUMENTS.filter((path) => path !== 'CHANGELOG.md').flatMap(namesIn);
    expect(others.filter((name) => !metrics.includes(name))).toEqual([]);
  });

  it('docs/runbook has a page with meaning, impact, first look and action of every alert', () => {
    const pages = alertPages();
    const alerts = alertsIn(read('config/prometheus.rules.yaml'));
    expect(alerts.length).toBeGreaterThan(30);
    expect(Object.fromEntries(pages.map(({ alert, severity }) => [alert, severity]))).toEqual(
      Object.fromEntries(alerts.map(({ alert, labels: { severity } }) => [alert, severity])),
    );
    for (const { alert, Action } of pages) expect(Action, alert).toMatch(/^1\. /);
    const named = DOCUMENTS.filter((path) => path.startsWith('docs/runbook/Oncegate'));
    expect(named.sort()).toEqual(pages.map(({ alert }) => `docs/runbook/${alert}.md`).sort());
  });

  it('docs/runbook/README.md lists every page, by alert or by symptom, and every failure that a merchant can report', () => {
    const index = read('docs/runbook/README.md');
    const listed = [...index.matchAll(/\]\(([\w-]+\.md)\)/g)].map(([, page]) => `docs/runbook/${page}`);
    const pages = DOCUMENTS.filter((path) => /^docs\/runbook\/(?!README)/.test(path));
    expect(pages.filter((page) => !listed.includes(page))).toEqual([]);
    const failures = problemCodes.filter(
      (code) => problem(code, '').status >= 500 || code === 'request_in_flight',
    );
    expect(failures.filter((code) => !index.includes(`\`${code}\``))).toEqual([]);
  });

  it('docs/operations.md has every section in its contents', () => {
    const text = read('docs/operations.md');
    const [top = ''] = text.split(/^## Health/m, 1);
    const listed = [...top.matchAll(/\]\(#([\w-]+)\)/g)].map(([, anchor]) => anchor);
    const [_title, _contents, ...sections] = anchorsOf(text);
    expect(sections.length).toBeGreaterThan(10);
    expect(sections.filter((anchor) => !listed.includes(anchor))).toEqual([]);
  });

  it('docs/operations.md says of every outcome how the objectives of availability and of results count it, as the rules do', () => {
    const [, section = ''] = read('docs/operations.md').split(/^\| outcome \| availability \| results \|$/m);
    const [table = ''] = section.split('\n\n');
    const rows = [...table.matchAll(/^\| (`.+`) \| (\w+(?: counted)?).* \| (\w+(?: counted)?).* \|$/gm)].map(
      ([, outcomes = '', availability = '', results = '']) => ({
        as: { availability, results },
        outcomes: [...outcomes.matchAll(/`(\w+)`/g)].map(([, o = '']) => o),
      }),
    );
    const named = rows.flatMap(({ outcomes }) => outcomes);
    expect(named.filter((outcome) => !OUTCOMES.includes(outcome))).toEqual([]);
    expect(new Set(named).size).toBe(named.length);
    // Every other outcome is a refusal of the merchant's request.
    const others = OUTCOMES.filter((outcome) => !named.includes(outcome) && outcome !== 'merchant_gone');
    expect(others.filter((code) => problem(code as ProblemCode, '').status >= 500)).toEqual([]);
    type Objective = 'availability' | 'results';
    const documented = (objective: Objective, ...words: string[]) =>
      rows.filter(({ as }) => words.includes(as[objective])).flatMap(({ outcomes }) => outcomes);
    const counted = (record: string, objective: Objective) =>
      rulesIn(read('config/prometheus.rules.yaml'))
        .filter((rule) => rule.record?.startsWith(record) && rule.labels?.objective === objective)
        .flatMap(({ expr }) =>
          [...expr.matchAll(/outcome=~?"([^"]+)"/g)].flatMap(([, one = '']) => one.split('|')),
        );
    const total = 'job_instance_store_operation:oncegate_objective';
    for (const objective of ['availability', 'results'] as const) {
      expect(counted(`${total}_failures`, objective).sort()).toEqual(documented(objective, 'failed').sort());
      const all = documented(objective, 'served', 'failed').sort();
      expect(counted(`${total}_requests`, objective).sort()).toEqual(all);
    }
  });

  it('docs/configuration.md shows sections that are valid', () => {
    const shown = read('docs/configuration.md').matchAll(/```yaml\n((?!merchants)[a-z]+:.*?)```/gs);
    const sections = [...shown].map(([, section = '']) => section);
    expect(sections.length).toBeGreaterThanOrEqual(8);
    const token = 'a-token-of-some-length';
    const env = {
      ...{ ONCEGATE_PEPPER: 'a-pepper-of-some-length', REDIS_URL: 'redis://redis.internal:6379' },
      ...{
        ONCEGATE_ADMIN_TOKEN: token,
        ONCEGATE_METRICS_TOKEN: `${token}-of-prometheus`,
        COLLECTOR_TOKEN: token,
      },
      ...{ CONSOLE_TOKEN_ADA: `${token}-1`, CONSOLE_TOKEN_SUPPORT: `${token}-2` },
      ONCEGATE_STORE_KEY: 'ab'.repeat(32),
    };
    for (const section of sections) {
      const whole = section.startsWith('upstream:') ? section : `upstream: { url: "http://a" }\n${section}`;
      expect(() => parseConfig(whole, env), section).not.toThrow();
    }
  });

  it('show no callback of listen(): Express 5 calls it also when the port is in use', () => {
    const shown = [...DOCUMENTS, 'scripts/package/README.md'].flatMap((path) =>
      [...read(path).matchAll(/^ *(?:const \w+ = )?app\.listen\(.*$/gm)].map(([line]) => line),
    );
    expect(shown.length).toBeGreaterThanOrEqual(6);
    expect(shown.filter((line) => /listen\([^)]*(?:=>|function)/.test(line))).toEqual([]);
  });

  it('name files and commands that there are', () => {
    expect(DOCUMENTS).toContain('docs/merchants.md');
    const { scripts } = JSON.parse(read('package.json'));
    const missing = DOCUMENTS.flatMap((document) => {
      const text = read(document);
      // The run of a benchmark writes it.
      const written = ['bench/results.json'];
      const files = text.matchAll(/`((?:src|test|scripts|bench|config|docs|grafana)\/[\w./-]+\.\w+)`/g);
      const commands = text.matchAll(/npm run (?:--silent )?([a-z:]+)/g);
      return [
        ...[...files]
          .map(([, file = '']) => file)
          .filter((file) => !existsSync(join(ROOT, file)) && !written.includes(file)),
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

  it('of decisions have a number, a status, a date and a line in the index, and the sources name no others', () => {
    for (const path of ADRS) {
      const [, number] = path.match(/^docs\/adr\/0*(\d+)-[a-z-]+\.md$/) ?? [];
      expect(read(path), path).toMatch(
        new RegExp(
          `^# ${number}\\. .+\n\n\\*\\*Status\\.\\*\\* (?:Accepted|Replaced by ADR \\d+), \\d{4}-\\d\\d-\\d\\d\\.`,
        ),
      );
    }
    const index = read('docs/adr/README.md');
    for (const path of ADRS) {
      const [, title] = read(path).match(/^# (.+)$/m) ?? [];
      expect(index).toContain(`| [${title}](${path.slice('docs/adr/'.length)})`);
    }
    const numbers = ADRS.map((path) => Number(path.match(/\d+/)?.[0]));
    expect(numbers.sort((a, b) => a - b)).toEqual(numbers.map((_, at) => at + 1));
    const named = [...DOCUMENTS, ...globSync('{src,test}/**/*.ts', { cwd: ROOT })].flatMap((path) =>
      [...read(path).matchAll(/\bADR (\d+)/g)].map(([, number]) => Number(number)),
    );
    expect(named.filter((number) => !numbers.includes(number))).toEqual([]);
  });
});

interface Rule {
  alert?: string;
  record?: string;
  expr: string;
  labels?: Record<string, string>;
}

const rulesIn = (text: string): Rule[] => parse(text).groups.flatMap(({ rules }: { rules: Rule[] }) => rules);

const alertsIn = (text: string) =>
  rulesIn(text).filter(
    (rule): rule is Rule & { alert: string; labels: { severity: string } } => 'alert' in rule,
  );
