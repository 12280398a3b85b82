import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { problemCodes } from '../../../src/kernel/problem.ts';
import { withdraw } from '../../support/client.ts';
import { eachRow } from '../../support/each-row.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openStack } from '../../support/stack.ts';
import {
  annotationLabels,
  dashboards,
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

/** What not every gateway has: certificates, secret keys that end, a collection of garbage. */
const CONDITIONAL = new Map([
  ['oncegate_certificate_expires_timestamp_seconds', [...OF_THE_SCRAPE, 'certificate']],
  ['oncegate_secret_key_expires_timestamp_seconds', OF_THE_SCRAPE],
  ['nodejs_gc_duration_seconds_sum', [...OF_THE_SCRAPE, 'kind']],
]);

/** The series in a Prometheus that scrapes this gateway. */
function exportedBy(shown: Scrape): Exported {
  return (name) => {
    const recorded = rules.find(({ record }) => record === name);
    if (recorded) {
      const { labels } = readPromql(recorded.expr, exportedBy(shown));
      return unknownValues([...labels, ...Object.keys(recorded.labels ?? {})]);
    }
    const made = OF_PROMETHEUS.get(name) ?? CONDITIONAL.get(name);
    if (made) return unknownValues(made);
    const labels = shown.labelsOf(name);
    return labels && new Map([...unknownValues(OF_THE_SCRAPE), ...labels]);
  };
}

describe('the traffic of these tests', () => {
  it('has every outcome', () => {
    const outcomes = Object.keys(seen.table('oncegate_requests_total', 'outcome'));
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

describe('the dashboards', () => {
  it('query series that exist', () =>
    eachRow(
      queries,
      ({ name }) => name,
      ({ expr, legendFormat }) => {
        const { labels, problems } = readPromql(expr, exportedBy(seen));
        expect(problems).toEqual([]);
        expect([...labels]).toEqual(expect.arrayContaining(legendLabels(legendFormat)));
      },
    ));

  it('mark events by labels that exist', () =>
    eachRow(
      dashboards.flatMap(({ annotations }) => annotations.list),
      ({ name }) => name,
      ({ expr, titleFormat, textFormat }) => {
        const { labels, problems } = readPromql(expr, exportedBy(seen));
        expect(problems).toEqual([]);
        expect([...labels]).toEqual(expect.arrayContaining(legendLabels(`${titleFormat} ${textFormat}`)));
      },
    ));

  it('offer values of labels that exist', () =>
    eachRow(
      dashboards.flatMap(({ templating }) => templating.list.filter(({ type }) => type === 'query')),
      ({ name }) => name,
      ({ name, definition }) => {
        const [, metric = '', label = ''] = /^label_values\((.+), (\w+)\)$/.exec(String(definition)) ?? [];
        const { labels, problems } = readPromql(metric, exportedBy(seen));
        expect(problems).toEqual([]);
        expect(labels).toContain(label);
        expect(label).toBe(name);
      },
    ));

  it('show every alert', () => {
    expect(rules.filter(({ alert }) => alert && !alert.startsWith('Oncegate'))).toEqual([]);
  });

  it('show every metric of the gateway', () => {
    const asked = queries.flatMap(({ expr }) => readPromql(expr, exportedBy(seen)).metrics);
    const ours = seen.families.filter((family) => family.startsWith('oncegate_'));
    const shown = (family: string) =>
      asked.some((name) => name.replace(/_(?:bucket|sum|count)$/, '') === family);
    expect(ours.length).toBeGreaterThan(15);
    expect(ours.filter((family) => !shown(family))).toEqual([]);
  });

  it('use only variables that they declare, or that Grafana has', () => {
    const OF_GRAFANA = [
      '__rate_interval',
      '__url_time_range',
      '__all_variables',
      '__field',
      '__from',
      '__to',
    ];
    for (const { uid, panels, templating, links } of dashboards) {
      const declared = [...OF_GRAFANA, ...templating.list.map(({ name }) => name)];
      const used = [...JSON.stringify([panels, links]).matchAll(/\$\{?(\w+)/g)].map(([, name = '']) => name);
      expect(
        used.filter((name) => !declared.includes(name)),
        uid,
      ).toEqual([]);
      // And declare none in vain.
      expect(
        templating.list.filter(({ name }) => !used.includes(name)).map(({ name }) => name),
        uid,
      ).toEqual([]);
    }
  });
});

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
          runbook_url: expect.stringMatching(/^https:\/\/.+#oncegate[a-z]+$/),
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
  }, 120_000);
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
    'x offset',
    'time(x)',
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
    ['time() - max by (b) (x)', 'by (b): no such label within'],
    ['max_over_time(x{b="1"}[1h] offset 1m)', 'x: has no label b'],
    ['sum by (b) (label_replace(x, "c", "none", "", ""))', 'by (b): no such label within'],
    ['histogram_quantile(0.5, sum by (a) (x))', 'histogram_quantile: without le'],
  ])('finds what is wrong with %s', (text, problem) => {
    const shown = new Scrape('x{a="1"} 1');
    expect(readPromql(text, (name) => shown.labelsOf(name)).problems).toEqual([problem]);
  });
});
