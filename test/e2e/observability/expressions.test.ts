import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { problemCodes } from '../../../src/kernel/problem.ts';
import { withdraw } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { eachRow } from '../../support/each-row.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openStack } from '../../support/stack.ts';
import {
  annotationLabels,
  dashboard,
  legendLabels,
  PROMETHEUS_FILE,
  queries,
  RULES_FILE,
  rules,
} from './support/artifacts.ts';
import { type Exported, parsePromql, readPromql } from './support/promql.ts';
import { promtool } from './support/promtool.ts';
import { Scrape, scrape } from './support/scrape.ts';
import { everyOutcome } from './support/traffic.ts';

/** Labels that Prometheus adds to each series. */
const OF_THE_SCRAPE = ['job', 'instance'];
/** Series that Prometheus generates itself. */
const OF_PROMETHEUS = new Map([
  ['up', OF_THE_SCRAPE],
  ['ALERTS', [...OF_THE_SCRAPE, 'alertname', 'alertstate', 'severity', 'operation']],
]);

const CASES_FILE = fileURLToPath(new URL('./rules.promtool.yaml', import.meta.url));

let seen: Scrape;
beforeAll(async () => {
  seen = await everyOutcome();
});

const unknownValues = (labels: Iterable<string>) => new Map([...labels].map((label) => [label, undefined]));

/** The series in a Prometheus that scrapes this gateway. */
function exportedBy(shown: Scrape): Exported {
  return (name) => {
    const recorded = rules.find(({ record }) => record === name);
    if (recorded) return unknownValues(readPromql(recorded.expr, exportedBy(shown)).labels);
    const made = OF_PROMETHEUS.get(name);
    if (made) return unknownValues(made);
    const labels = shown.labelsOf(name);
    return labels && new Map([...unknownValues(OF_THE_SCRAPE), ...labels]);
  };
}

describe('the traffic of these tests', () => {
  it('has every outcome', () => {
    const outcomes = [...(seen.labelsOf('oncegate_requests_total')?.get('outcome') ?? [])];
    const good = [
      'executed',
      'replayed',
      'released',
      'forwarded',
      'passed_through',
      'upgraded',
      'merchant_gone',
    ];
    // Only a defect of the gateway leads to this one.
    const refusals = problemCodes.filter((code) => code !== 'internal_error');
    expect(outcomes.sort()).toEqual([...good, ...refusals].sort());
  });
});

describe('the dashboard', () => {
  it('queries series that exist', () =>
    eachRow(
      queries,
      ({ name }) => name,
      ({ expr, legendFormat }) => {
        const { labels, problems } = readPromql(expr.replaceAll('|internal_error', ''), exportedBy(seen));
        expect(problems).toEqual([]);
        expect([...labels]).toEqual(expect.arrayContaining(legendLabels(legendFormat)));
      },
    ));

  const chosen = dashboard.templating.list.filter(({ type }) => type === 'query');
  it('offers values of labels that exist', () =>
    eachRow(
      chosen,
      ({ name }) => name,
      ({ name, definition }) => {
        const [, metric = '', label = ''] = /^label_values\((.+), (\w+)\)$/.exec(String(definition)) ?? [];
        const { labels, problems } = readPromql(metric, exportedBy(seen));
        expect(problems).toEqual([]);
        expect(labels).toContain(label);
        expect(label).toBe(name);
      },
    ));

  it('marks firing alerts by their names', () => {
    const [alerts] = dashboard.annotations.list as {
      expr: string;
      titleFormat: string;
      textFormat: string;
    }[];
    const { labels, problems } = readPromql(alerts?.expr ?? '', exportedBy(seen));
    expect(problems).toEqual([]);
    const shown = legendLabels(`${alerts?.titleFormat} ${alerts?.textFormat}`);
    expect([...labels]).toEqual(expect.arrayContaining(shown));
    expect(rules.filter(({ alert }) => alert && !alert.startsWith('Oncegate'))).toEqual([]);
  });

  it('shows every metric of the gateway', () => {
    const asked = queries.flatMap(({ expr }) => readPromql(expr, exportedBy(seen)).metrics);
    const ours = seen.families.filter((family) => family.startsWith('oncegate_'));
    const shown = (family: string) =>
      asked.some((name) => name.replace(/_(?:bucket|sum|count)$/, '') === family);
    expect(ours.length).toBeGreaterThan(15);
    expect(ours.filter((family) => !shown(family))).toEqual([]);
  });

  it('uses only variables that it declares', () => {
    const declared = new Set(['__rate_interval', ...dashboard.templating.list.map(({ name }) => name)]);
    const used = [...JSON.stringify(dashboard.panels).matchAll(/\$\{?(\w+)/g)].map(([, name = '']) => name);
    expect(used.filter((name) => !declared.has(name))).toEqual([]);
  });

  it('is valid PromQL for Prometheus itself', () => {
    for (const { expr } of queries) parsePromql(expr);
    const file = join(temporaryFolder(), 'queries.yaml');
    const rulesOf = queries.map(({ expr }, at) => ({ record: `query:${at}`, expr: withoutVariables(expr) }));
    writeFileSync(file, JSON.stringify({ groups: [{ name: 'queries', rules: rulesOf }] }));
    expect(promtool('check', 'rules', file)).toBe('');
  });
});

const withoutVariables = (expr: string): string => expr.replaceAll('$__rate_interval', '5m');

describe('the rules', () => {
  it('query series that exist', () =>
    eachRow(
      rules,
      ({ alert, record }) => alert ?? record,
      (rule) => {
        const { labels, problems } = readPromql(rule.expr, exportedBy(seen));
        expect(problems).toEqual([]);
        // absent() has no label `instance`; the text of that alert handles this.
        if (rule.alert === 'OncegateGatewayDown') labels.add('instance');
        expect([...labels]).toEqual(expect.arrayContaining(annotationLabels(rule.annotations)));
      },
    ));

  it('say what happened and what to do', () =>
    eachRow(
      rules.filter(({ alert }) => alert),
      ({ alert }) => alert,
      ({ labels, annotations }) => {
        expect(['critical', 'warning', 'info']).toContain(labels?.severity);
        expect(annotations).toEqual({
          summary: expect.stringMatching(/\w/),
          description: expect.stringMatching(/\.$/),
          runbook: expect.stringMatching(/^1\. /),
        });
      },
    ));

  it('are valid rules for Prometheus itself', () => {
    for (const { expr } of rules) parsePromql(expr);
    expect(promtool('check', 'rules', '--lint=all', '--lint-fatal', RULES_FILE)).toBe('');
    expect(promtool('check', 'config', PROMETHEUS_FILE)).toBe('');
  });

  it('fire when they should, and only then', () => {
    expect(promtool('test', 'rules', CASES_FILE)).toBe('');
  });
});

describe('a gateway with two workers', () => {
  it('exports the same names and labels', async () => {
    const stack = await openStack();
    const spawned = await spawnGateway({ ...stack.config, workers: 2 });
    try {
      await withdraw(spawned.url, { key: 'one' });
      const shown = exportedBy(await scrape(spawned.adminUrl));
      const missing = queries.flatMap(({ expr }) => readPromql(expr, shown).problems);
      // These two workers have not seen all values.
      expect(missing.filter((problem) => !problem.includes(' is never '))).toEqual([]);
    } finally {
      await spawned.end();
      await stack.close();
    }
  });
});

describe('the reader of PromQL', () => {
  it.each([
    'sum by (a (x)',
    'sum(rate(x[5m])',
    'rate(x[5 minutes])',
    'x{a="b}',
    "x{a='b'}",
    'x{a=b}',
    'x{a="b" c="d"}',
    'x y',
    'x +',
    'sum(x) by (a)',
    'rat(x[5m])',
    '',
  ])('refuses %s', (text) => {
    expect(() => parsePromql(text)).toThrow();
  });

  it.each([
    ['y', 'y: is not exported'],
    ['x{b="1"}', 'x: has no label b'],
    ['x{a="2"}', 'x: a is never 2'],
    ['x{a=~"1|2"}', 'x: a is never 2'],
    ['sum by (b) (rate(x[5m]))', 'by (b): no such label within'],
    ['histogram_quantile(0.5, sum by (a) (x))', 'histogram_quantile: without le'],
  ])('finds what is wrong with %s', (text, problem) => {
    const shown = new Scrape('x{a="1"} 1');
    expect(readPromql(text, (name) => shown.labelsOf(name)).problems).toEqual([problem]);
  });
});
