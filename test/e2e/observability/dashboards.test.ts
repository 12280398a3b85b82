import { readdirSync } from 'node:fs';
import * as units from '@grafana/grafana-foundation-sdk/units';
import { describe, expect, it } from 'vitest';
import { textsOf } from '../../../grafana/generate.ts';
import {
  added,
  availability,
  FAILED,
  FAILED_BEHIND,
  OBJECTIVES,
  results,
  SERVED,
} from '../../../grafana/source/objectives.ts';
import { EVENTS } from '../../../src/telemetry/events.ts';
import { leadsNowhere } from '../../support/anchors.ts';
import { parsedConfig } from '../../support/config.ts';
import { eachRow } from '../../support/each-row.ts';
import { read } from '../../support/repository.ts';
import {
  allPanels,
  DASHBOARDS,
  type Dashboard,
  dashboards,
  isRow,
  type Link,
  panels,
  queries,
  readYaml,
  rules,
} from './support/artifacts.ts';

const DATA_SOURCE = { type: 'prometheus', uid: `\${datasource}` };

describe('the dashboards', () => {
  it('take another runbook and log stream', () => {
    const runbook = 'https://wiki.example/oncegate';
    const [text = ''] = textsOf({ runbook, logStream: '{app=`gateway`}' }).values();
    expect(text).toContain(runbook);
    expect(text).toContain('{app=`gateway`}');
    expect(text).not.toContain('runbooks.example');
    expect(() => textsOf({ runbook, logStream: '{app="gateway"}' })).toThrow('backticks');
  });

  it('are two, one with closed rows, each as Grafana takes it', () => {
    const rowsOf = (which: string) => dashboards.find(({ uid }) => uid === which)?.panels.filter(isRow) ?? [];
    expect(dashboards.map(({ uid }) => uid).sort()).toEqual(['oncegate-internals', 'oncegate-overview']);
    expect(rowsOf('oncegate-internals').every(({ collapsed }) => collapsed)).toBe(true);
    expect(rowsOf('oncegate-overview').some(({ collapsed }) => collapsed)).toBe(false);
    // Nothing is hidden in the menu of a dashboard.
    expect(JSON.stringify(dashboards)).not.toContain('inControlsMenu');
    eachRow(dashboards, checkWhole);
  });

  it('explain themselves in every panel', () =>
    eachRow(panels, ({ description, fieldConfig, datasource, targets, type }) => {
      expect(description.length).toBeGreaterThan(60);
      expect(description).toMatch(/\bDo: .*\.$/);
      expect(Object.values(units)).toContain(fieldConfig.defaults.unit);
      const steps: { value: number | null }[] = fieldConfig.defaults.thresholds.steps;
      const values = steps.map(({ value }) => value);
      expect(values[0]).toBeNull();
      expect(values.slice(1)).toEqual(values.slice(1).toSorted((a, b) => Number(a) - Number(b)));
      for (const source of [datasource, ...targets.map((target) => target.datasource)])
        expect(source).toEqual(DATA_SOURCE);
      expect(new Set(targets.map(({ refId }) => refId)).size).toBe(targets.length);
      expect(targets.length).toBeGreaterThan(0);
      if (type !== 'timeseries') expect(fieldConfig.defaults.noValue).toBe('no data');
    }));

  it('query only the chosen gateways, and never add up what every gateway knows from the store', () => {
    const ofTheStore =
      /oncegate_(?:keys_in_doubt|keys_owner_gone|oldest_in_doubt|doubts_counted|resolutions)\w*/;
    expect(queries.filter(({ expr }) => ofTheStore.test(expr)).length).toBeGreaterThan(5);
    eachRow(queries, ({ expr }) => {
      const selectors = [...expr.matchAll(/\b(?!ALERTS)\w+\{([^}]*)\}/g)].map(([, selector]) => selector);
      expect(selectors.length + (expr.includes('ALERTS{') ? 1 : 0)).toBeGreaterThan(0);
      for (const selector of selectors) expect(selector).toMatch(/^job=~"\$job", instance=~"\$instance"/);
      if (ofTheStore.test(expr))
        // Nor do they merge several stores under one job.
        expect(expr).toMatch(
          /max by \(job, store(?:, \w+)*\) \((?:increase\()?oncegate_.* on \(job, instance\) group_left \(store\) oncegate_store_info/,
        );
    });
  });
});

/** Checks numbers, titles, choices and variables. Grafana itself places panels without overlaps. */
function checkWhole(dashboard: Dashboard): void {
  expect(dashboard).toMatchObject({ id: null, schemaVersion: 39, editable: false, tags: ['oncegate'] });
  const all = allPanels(dashboard);
  const ids = all.map(({ id }) => id);
  expect(ids.every((id) => Number.isInteger(id) && id > 0)).toBe(true);
  for (const names of [ids.map(String), all.map(({ title }) => title)])
    expect(new Set(names).size).toBe(all.length);

  const { templating, annotations, panels: placed, links } = dashboard;
  const declared = templating.list.map(({ name }) => name);
  expect(declared.slice(0, 3)).toEqual(['datasource', 'job', 'instance']);
  const choice = { type: 'query', multi: true, includeAll: true, datasource: DATA_SOURCE };
  for (const one of templating.list.filter(({ type }) => type === 'query')) {
    expect(one).toMatchObject(choice);
    // `.*` would include other jobs.
    expect(one.allValue).toBeUndefined();
  }
  for (const { datasource } of annotations.list) expect(datasource).toEqual(DATA_SOURCE);
  const used = [...JSON.stringify([placed, links]).matchAll(/\$\{?(\w+)/g)].map(([, name = '']) => name);
  const unknown = used.filter((name) => !declared.includes(name) && !name.startsWith('__'));
  expect([unknown, declared.filter((name) => !used.includes(name))]).toEqual([[], []]);
}

describe('the links', () => {
  const links: (Link & { from: string })[] = [
    ...dashboards.flatMap(({ uid, links: of }) => of.map((link) => ({ from: uid, ...link }))),
    ...panels.flatMap(({ uid, title, links: of, fieldConfig }) =>
      [...of, ...(fieldConfig.defaults.links ?? [])].map((link) => ({ from: `${uid}, ${title}`, ...link })),
    ),
  ];
  const startingWith = (start: string) => links.filter(({ url }) => url?.startsWith(start));

  it('lead to dashboards with time range and choices, to pages of the documents from every panel, or to logs', () => {
    const runbook = `\${runbook:raw}/`;
    eachRow(links, ({ type, tags, url }) => {
      if (url === undefined) expect({ type, tags }).toEqual({ type: 'dashboards', tags: ['oncegate'] });
      else if (url.startsWith(runbook))
        expect(leadsNowhere(`docs/${url.slice(runbook.length)}`), url).toBe(false);
      else if (url.startsWith('/d/')) {
        const [, uid] = /^\/d\/([\w-]+)\?\$\{__url_time_range\}&\$\{__all_variables\}$/.exec(url) ?? [];
        expect(dashboards.map((dashboard) => dashboard.uid)).toContain(uid);
      } else expect(url).toMatch(/^\/explore\?/);
    });
    expect(startingWith('/d/').length).toBeGreaterThan(4);
    expect(new Set(startingWith(runbook).map(({ from }) => from)).size).toBe(
      panels.length + dashboards.length,
    );
  });

  it('to logs are addresses of Explore with LogQL that names fields of log lines', () => {
    const toLogs = startingWith('/explore?');
    expect(toLogs.length).toBeGreaterThan(15);
    eachRow(toLogs, ({ url, title }) => {
      const shown = new URL(withValues(url ?? ''), 'http://grafana');
      const { logs } = JSON.parse(shown.searchParams.get('panes') ?? '');
      expect(logs).toMatchObject({ datasource: 'loki-1', range: { from: '1000', to: '2000' } });
      const [{ expr }] = logs.queries;
      // A request id may be any text.
      if (title.includes('request id')) expect(expr).toBe('{job=`oncegate`} | json | requestId=`a+b/c d`');
      const [, filter = ''] = /^\{job=`oncegate`\} \| json \| (.+)$/.exec(expr) ?? [];
      expect(filter).not.toBe('');
      for (const one of filter.split(' | ')) {
        const [, field = '', value = ''] = /^(\w+)=~?`([^`]+)`$/.exec(one) ?? [];
        const events = Object.values(EVENTS).filter(({ message, fields }) =>
          field === 'msg' ? new RegExp(`^(?:${value})$`).test(message) : field in fields,
        );
        expect(events, one).not.toEqual([]);
      }
    });
    expect(toLogs.some(({ title }) => title.includes('request id'))).toBe(true);
  });

  /** Replaces variables as Grafana does. */
  function withValues(url: string): string {
    const values: Record<string, string> = {
      ...{ logs: 'loki-1', log_stream: '{job=`oncegate`}', request_id: 'a+b/c d' },
      ...{ __from: '1000', __to: '2000' },
    };
    return url.replace(/\$\{([\w.]+)(?::(\w+))?\}/g, (_whole, name: string, format?: string) => {
      const value = values[name] ?? (name.startsWith('__field.labels.') ? 'word' : undefined);
      if (value === undefined) throw new Error(`no such variable: ${name}`);
      return format === 'percentencode' ? encodeURIComponent(value) : value;
    });
  }
});

describe('the texts for the person on call', () => {
  const alerts = rules.filter(({ alert }) => alert);
  const texts = [
    ...panels.map(({ uid, title, description }) => ({ name: `${uid}, ${title}`, text: description })),
    ...alerts.map(({ alert, annotations = {} }) => ({
      name: alert,
      text: Object.values(annotations).join('\n'),
    })),
  ];
  const upstream = { url: 'http://127.0.0.1:1' };
  const stores = [{ kind: 'sqlite' as const }, { kind: 'redis' as const, url: 'redis://127.0.0.1:1' }];
  const configs = stores.map((store) =>
    parsedConfig({
      ...{ upstream, store, admin: { token: 'a token of sixteen' } },
      limits: { bufferedBytes: 2 ** 27, perMerchant: { requests: 1 } },
      tracing: { endpoint: 'http://127.0.0.1:1' },
    }),
  );
  /** The texts name options of an operation without the name of the operation. */
  const places = configs.flatMap((config) => [config, ...config.operations]);

  it('name options, panels, alerts and log lines that exist', () => {
    const messages: string[] = Object.values(EVENTS).map(({ message }) => message);
    const titles = panels.map(({ title }) => title);
    eachRow(texts, ({ text }) => {
      const found = (pattern: RegExp) =>
        [...text.replace(/\s+/g, ' ').matchAll(pattern)].map(([, name = '']) => name);
      const options = found(/`([a-z]+(?:\.[a-zA-Z]+)+)(?:: \w+)?`/g).filter((one) => !one.endsWith('.db'));
      const quoted = found(/"([A-Z][^"]+)"/g);
      expect({
        options: options.filter((option) => !places.some((place) => hasOption(place, option))),
        panels: quoted.filter((title) => !titles.some((one) => one.startsWith(title))),
        alerts: found(/\b(Oncegate[A-Z]\w+)/g).filter((one) => !alerts.some(({ alert }) => alert === one)),
        messages: found(/log(?: line| then says)? "([a-z][^"]+)"/g).filter((one) => !messages.includes(one)),
      }).toEqual({ options: [], panels: [], alerts: [], messages: [] });
    });
  });

  it('are a summary, a description, and the address of the runbook that the dashboards have', () => {
    const [{ templating } = { templating: { list: [] } }] = dashboards;
    const base = templating.list.find(({ name }) => name === 'runbook')?.query;
    expect(alerts.length).toBeGreaterThan(20);
    for (const { alert, annotations } of alerts)
      expect(annotations).toEqual({
        summary: expect.stringMatching(/\w/),
        description: expect.stringMatching(/\.$/),
        runbook_url: `${base}/runbook/${alert}.md`,
      });
    // The dashboards ask for alerts of these names.
    expect(alerts.filter(({ alert }) => !alert?.startsWith('Oncegate'))).toEqual([]);
  });
});

function hasOption(config: object, option: string): boolean {
  let value: unknown = config;
  for (const name of option.split('.')) value = (value as Record<string, unknown> | undefined)?.[name];
  return value !== undefined;
}

it('the provisioning has one Prometheus, with the interval of its configuration, and loads the dashboards', () => {
  const sources = readYaml('grafana/provisioning/datasources/prometheus.yaml');
  const { timeInterval } = sources.datasources[0].jsonData;
  expect(sources).toMatchObject({
    apiVersion: 1,
    datasources: [{ type: 'prometheus', access: 'proxy', url: expect.stringMatching(/^http/) }],
  });
  expect(timeInterval).toBe(readYaml('config/prometheus.yaml').global.scrape_interval);
  const loading = readYaml('grafana/provisioning/dashboards/oncegate.yaml');
  expect(loading).toMatchObject({ apiVersion: 1, providers: [{ type: 'file', allowUiUpdates: false }] });
  // The README mounts the folder there. It has nothing but dashboards.
  const [{ options }] = loading.providers;
  expect(read('grafana/README.md')).toContain(`/grafana/dashboards:${options.path}:ro`);
  expect(dashboards).toHaveLength(readdirSync(DASHBOARDS).length);
});

it('the dashboards count the objectives as the rules count them', () => {
  const ruleOf = (record: string, objective: string): string =>
    rules.find((rule) => rule.record === record && rule.labels?.objective === objective)?.expr ?? '';
  const wordsIn = (expr: string): string[] => /outcome=~"([^"]+)"/.exec(expr)?.[1]?.split('|').sort() ?? [];
  const failures = ruleOf('job_instance_store_operation:oncegate_objective_failures:total', 'availability');
  const requests = ruleOf('job_instance_store_operation:oncegate_objective_requests:total', 'availability');
  expect(wordsIn(failures)).toEqual(FAILED.split('|').sort());
  expect(wordsIn(requests)).toEqual([...FAILED.split('|'), ...SERVED.split('|')].sort());
  const alsoFailed = 'outcome="overloaded", operation!="none"';
  for (const expr of [failures, requests, availability('5m')]) expect(expr).toContain(alsoFailed);
  const noResult = ruleOf('job_instance_store_operation:oncegate_objective_failures:total', 'results');
  expect(wordsIn(noResult)).toEqual(`${FAILED}|${FAILED_BEHIND}`.split('|').sort());
  const wanted = ruleOf('job_instance_store_operation:oncegate_objective_requests:total', 'results');
  expect(wordsIn(wanted)).toEqual(`${FAILED}|${FAILED_BEHIND}|${SERVED}`.split('|').sort());
  for (const part of [alsoFailed, 'oncegate_upstream_responses_total', 'class="5xx"']) {
    expect(noResult).toContain(part);
    expect(results('5m')).toContain(part);
  }
  expect(ruleOf('oncegate:objective:target', 'results')).toBe(`vector(${OBJECTIVES.results})`);
  const slow = ruleOf('job_instance_store_operation:oncegate_objective_failures:total', 'latency');
  expect(slow).toContain(`operation!="none", le="${OBJECTIVES.addedSeconds}"`);
  expect(added(0.99)).toContain('operation!="none"');
  expect(ruleOf('oncegate:objective:target', 'availability')).toBe(`vector(${OBJECTIVES.available})`);
  // The overview shows the latency of 99 %.
  expect(ruleOf('oncegate:objective:target', 'latency')).toBe('vector(0.99)');
});
