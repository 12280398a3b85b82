import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as units from '@grafana/grafana-foundation-sdk/units';
import { describe, expect, it } from 'vitest';
import { textsOf } from '../../../grafana/generate.ts';
import {
  added,
  availability,
  FAILED,
  OBJECTIVES,
  SERVED,
} from '../../../grafana/source/overview/availability.ts';
import { LOG_EVENTS } from '../../../src/observability/log-events.ts';
import { anchorsOf } from '../../support/anchors.ts';
import { parsedConfig } from '../../support/config.ts';
import { eachRow } from '../../support/each-row.ts';
import { DASHBOARDS, dashboards, type Link, panels, readText, readYaml, rules } from './support/artifacts.ts';

const DATA_SOURCE = { type: 'prometheus', uid: `\${datasource}` };

describe('the dashboards', () => {
  it('are generated from their source', () => {
    const texts = textsOf();
    expect(readdirSync(DASHBOARDS).sort()).toEqual([...texts.keys()].sort());
    for (const [file, text] of texts)
      expect(readFileSync(join(DASHBOARDS, file), 'utf8'), 'run: node grafana/generate.ts').toBe(text);
  });

  it('take another runbook and log stream', () => {
    const runbook = 'https://wiki.example/oncegate';
    const [text = ''] = textsOf({ runbook, logStream: '{app=`gateway`}' }).values();
    expect(text).toContain(runbook);
    expect(text).toContain('{app=`gateway`}');
    expect(text).not.toContain('runbooks.example');
    expect(() => textsOf({ runbook, logStream: '{app="gateway"}' })).toThrow('backticks');
  });

  it('are four, with the overview', () => {
    expect(dashboards.map(({ uid }) => uid).sort()).toEqual([
      'oncegate-idempotency',
      'oncegate-merchants',
      'oncegate-overview',
      'oncegate-runtime',
    ]);
    for (const dashboard of dashboards)
      expect(dashboard).toMatchObject({ id: null, schemaVersion: 39, editable: false, tags: ['oncegate'] });
  });

  it('give each panel a unique number and title', () =>
    eachRow(
      dashboards,
      ({ uid }) => uid,
      (dashboard) => {
        const ids = dashboard.panels.map(({ id }) => id);
        expect(new Set(ids).size).toBe(ids.length);
        expect(ids.every((id) => Number.isInteger(id) && id > 0)).toBe(true);
        const titles = dashboard.panels.map(({ title }) => title);
        expect(new Set(titles).size).toBe(titles.length);
      },
    ));

  it('lie on the grid without overlaps or gaps', () =>
    eachRow(
      dashboards,
      ({ uid }) => uid,
      (dashboard) => {
        const taken = new Map<string, string>();
        for (const { title, gridPos } of dashboard.panels) {
          expect(gridPos.x + gridPos.w, title).toBeLessThanOrEqual(24);
          for (const cell of cellsOf(gridPos)) {
            expect(taken.get(cell), `${title} at ${cell}`).toBeUndefined();
            taken.set(cell, title);
          }
        }
        const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
        expect(taken.size).toBe(24 * bottom);
      },
    ));

  it('explain themselves in every panel', () =>
    eachRow(
      panels,
      ({ uid, title }) => `${uid}, ${title}`,
      ({ description, fieldConfig, datasource, targets, type }) => {
        expect(description.length).toBeGreaterThan(60);
        expect(description).toMatch(/\bDo: .*\.$/);
        expect(Object.values(units)).toContain(fieldConfig.defaults.unit);
        const values = fieldConfig.defaults.thresholds.steps.map(({ value }) => value);
        expect(values[0]).toBeNull();
        expect(values.slice(1)).toEqual(values.slice(1).toSorted((a, b) => Number(a) - Number(b)));
        for (const source of [datasource, ...targets.map((target) => target.datasource)])
          expect(source).toEqual(DATA_SOURCE);
        expect(new Set(targets.map(({ refId }) => refId)).size).toBe(targets.length);
        expect(targets.length).toBeGreaterThan(0);
        if (type !== 'timeseries') expect(fieldConfig.defaults.noValue).toBe('no data');
      },
    ));

  it('can be filtered by data source, job and instance', () =>
    eachRow(
      dashboards,
      ({ uid }) => uid,
      ({ templating: { list }, annotations }) => {
        expect(list.slice(0, 3).map(({ name }) => name)).toEqual(['datasource', 'job', 'instance']);
        for (const { type, multi, includeAll, allValue, datasource } of list.filter(isChoice)) {
          expect({ type, multi, includeAll, datasource }).toEqual({
            ...{ type: 'query', multi: true, includeAll: true },
            datasource: DATA_SOURCE,
          });
          // `.*` would include other jobs.
          expect(allValue).toBeUndefined();
        }
        for (const { datasource } of annotations.list) expect(datasource).toEqual(DATA_SOURCE);
      },
    ));

  it('query only the chosen gateways', () => {
    for (const { title, targets } of panels)
      for (const { expr } of targets) {
        const selectors = [...expr.matchAll(/\b(?!ALERTS)\w+\{([^}]*)\}/g)].map(([, selector]) => selector);
        expect(selectors.length + (expr.includes('ALERTS{') ? 1 : 0), title).toBeGreaterThan(0);
        for (const selector of selectors)
          expect(selector, title).toMatch(/^job=~"\$job", instance=~"\$instance"/);
      }
  });

  it('never add up what every gateway knows from the store', () => {
    const ofTheStore =
      /oncegate_(?:keys_in_doubt|keys_owner_gone|oldest_in_doubt|doubts_counted|resolutions)\w*/g;
    const asked = panels.flatMap(({ targets }) => targets.map(({ expr }) => expr));
    const found = asked.filter((expr) => ofTheStore.test(expr));
    expect(found.length).toBeGreaterThan(6);
    for (const expr of found)
      expect(expr).toMatch(/max by \((?:job|job, \w+(?:, \w+)*)\) \((?:increase\()?oncegate_/);
  });

  it('show nothing in a closed menu', () => {
    expect(JSON.stringify(dashboards)).not.toContain('inControlsMenu');
  });
});

const isChoice = ({ type }: { type: string }): boolean => type === 'query';

function* cellsOf({ x, y, w, h }: { x: number; y: number; w: number; h: number }): Generator<string> {
  for (let right = x; right < x + w; right++)
    for (let down = y; down < y + h; down++) yield `${right},${down}`;
}

describe('the links', () => {
  const links: (Link & { from: string; uid: string })[] = [
    ...dashboards.flatMap(({ uid, links: of }) => of.map((link) => ({ ...link, uid, from: uid }))),
    ...panels.flatMap(({ uid, title, links: of, fieldConfig }) =>
      [...of, ...(fieldConfig.defaults.links ?? [])].map((link) => ({
        ...link,
        uid,
        from: `${uid}, ${title}`,
      })),
    ),
  ];
  const withUrl = links.filter(({ url }) => url !== undefined);
  const startingWith = (start: string) => withUrl.filter(({ url = '' }) => url.startsWith(start));

  it('lead to a dashboard, the runbook or the logs', () => {
    const known = ['/d/', `\${runbook:raw}`, '/explore?'].flatMap(startingWith);
    expect(withUrl.filter((link) => !known.includes(link))).toEqual([]);
    for (const { type, tags } of links.filter((link) => !withUrl.includes(link)))
      expect({ type, tags }).toEqual({ type: 'dashboards', tags: ['oncegate'] });
  });

  it('to details keep time range and choices, and lead to a dashboard', () => {
    const details = startingWith('/d/');
    for (const uid of ['oncegate-idempotency', 'oncegate-merchants', 'oncegate-runtime'])
      expect(
        details.some(({ uid: from, url }) => from === 'oncegate-overview' && url?.includes(uid)),
        uid,
      ).toBe(true);
    for (const { from, url } of details) {
      const [, uid] = /^\/d\/([\w-]+)\?\$\{__url_time_range\}&\$\{__all_variables\}$/.exec(url ?? '') ?? [];
      expect(
        dashboards.map((dashboard) => dashboard.uid),
        from,
      ).toContain(uid);
    }
  });

  it('to the runbook lead to its headings, from every panel', () => {
    const anchors = anchorsOf(readText('docs/operations.md'));
    const toRunbook = startingWith(`\${runbook:raw}#`);
    expect(new Set(toRunbook.map(({ from }) => from)).size).toBe(panels.length);
    const missing = toRunbook.filter(({ url = '' }) => !anchors.includes(url.slice(url.indexOf('#') + 1)));
    expect(missing.map(({ from, url }) => `${from}: ${url}`)).toEqual([]);
  });

  it('to logs are addresses of Explore with LogQL that names fields of log lines', () => {
    const toLogs = startingWith('/explore?');
    expect(toLogs.length).toBeGreaterThan(20);
    for (const { from, url = '' } of toLogs) {
      const shown = new URL(withValues(url), 'http://grafana');
      const panes = JSON.parse(shown.searchParams.get('panes') ?? '');
      expect(panes.logs, from).toMatchObject({
        datasource: 'loki-1',
        range: { from: '1000', to: '2000' },
      });
      const [, filter = ''] = /^\{job=`oncegate`\} \| json \| (.+)$/.exec(panes.logs.queries[0].expr) ?? [];
      expect(filter, from).not.toBe('');
      for (const one of filter.split(' | ')) {
        const [, field = '', value = ''] = /^(\w+)=~?`([^`]+)`$/.exec(one) ?? [];
        const events = LOG_EVENTS.filter(({ msg, fields }) =>
          field === 'msg' ? new RegExp(`^(?:${value})$`).test(msg) : field in fields,
        );
        expect(events, `${from}: ${one}`).not.toEqual([]);
      }
    }
  });

  it('from the logs take any request id', () => {
    const [{ url = '' } = {}] = startingWith('/explore?').filter(({ title }) => title.includes('request id'));
    const shown = new URL(withValues(url), 'http://grafana').searchParams.get('panes') ?? '';
    expect(JSON.parse(shown).logs.queries[0].expr).toBe('{job=`oncegate`} | json | requestId=`a+b/c d`');
  });

  /** As Grafana replaces them. */
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

/** All texts for the person on call. */
const texts = [
  ...panels.map(({ uid, title, description }) => ({ name: `${uid}, ${title}`, text: description })),
  ...rules
    .filter(({ alert }) => alert)
    .map(({ alert, annotations = {} }) => ({ name: alert, text: Object.values(annotations).join('\n') })),
];

describe('the texts for the person on call', () => {
  const upstream = { url: 'http://127.0.0.1:1' };
  const stores = [{ kind: 'sqlite' as const }, { kind: 'redis' as const, url: 'redis://127.0.0.1:1' }];
  const configs = stores.map((store) =>
    parsedConfig({
      ...{ upstream, store, admin: { token: 'a token of sixteen' } },
      limits: { perMerchant: { requests: 1 } },
      tracing: { endpoint: 'http://127.0.0.1:1' },
    }),
  );
  /** The texts name options of an operation without the name of the operation. */
  const places = configs.flatMap((config) => [config, ...config.operations]);

  it('name options that exist', () =>
    eachRow(
      texts,
      ({ name }) => name,
      ({ text }) => {
        const options = [...text.matchAll(/`([a-z]+(?:\.[a-zA-Z]+)+)(?:: \w+)?`/g)].map(
          ([, option = '']) => option,
        );
        const missing = options.filter((option) => !places.some((place) => hasOption(place, option)));
        expect(missing.filter((option) => !/\.db$/.test(option))).toEqual([]);
      },
    ));

  it('name panels and alerts that exist', () =>
    eachRow(
      texts,
      ({ name }) => name,
      ({ text }) => {
        const titles = dashboards.flatMap((dashboard) => dashboard.panels.map(({ title }) => title));
        const quoted = [...text.matchAll(/"([A-Z][^"]+)"/g)].map(([, title = '']) => title);
        expect(quoted.filter((title) => !titles.some((one) => one.startsWith(title)))).toEqual([]);
        const alerts = [...text.matchAll(/\bOncegate[A-Z]\w+/g)].map(([alert]) => alert);
        expect(alerts.filter((name) => !rules.some(({ alert }) => alert === name))).toEqual([]);
      },
    ));

  it('quote log lines that exist', () =>
    eachRow(
      texts,
      ({ name }) => name,
      ({ text }) => {
        const messages = [...text.replace(/\s+/g, ' ').matchAll(/log(?: line| then says)? "([a-z][^"]+)"/g)];
        for (const [, message = ''] of messages) expect(LOG_EVENTS.map(({ msg }) => msg)).toContain(message);
      },
    ));
});

function hasOption(config: object, option: string): boolean {
  let value: unknown = config;
  for (const name of option.split('.')) value = (value as Record<string, unknown> | undefined)?.[name];
  return value !== undefined;
}

describe('the provisioning', () => {
  it('has one Prometheus as data source', () => {
    const { apiVersion, datasources } = readYaml('grafana/provisioning/datasources/prometheus.yaml');
    expect(apiVersion).toBe(1);
    expect(datasources).toHaveLength(1);
    expect(datasources[0]).toMatchObject({
      type: 'prometheus',
      access: 'proxy',
      url: expect.stringMatching(/^http/),
    });
  });

  it('has the scrape interval of the example configuration', () => {
    const [source] = readYaml('grafana/provisioning/datasources/prometheus.yaml').datasources;
    expect(source.jsonData.timeInterval).toBe(readYaml('config/prometheus.yaml').global.scrape_interval);
  });

  it('loads the dashboards', () => {
    const { apiVersion, providers } = readYaml('grafana/provisioning/dashboards/oncegate.yaml');
    expect(apiVersion).toBe(1);
    expect(providers).toHaveLength(1);
    const [{ type, allowUiUpdates, options }] = providers;
    expect({ type, allowUiUpdates }).toEqual({ type: 'file', allowUiUpdates: false });
    // The README mounts the folder there.
    expect(readText('grafana/README.md')).toContain(`/grafana/dashboards:${options.path}:ro`);
    // It has nothing but dashboards.
    expect(dashboards).toHaveLength(readdirSync(DASHBOARDS).length);
  });
});

describe('the objectives', () => {
  const ruleOf = (record: string, objective: string): string =>
    rules.find((rule) => rule.record === record && rule.labels?.objective === objective)?.expr ?? '';
  const wordsIn = (expr: string): string[] => /outcome=~"([^"]+)"/.exec(expr)?.[1]?.split('|').sort() ?? [];

  it('are counted as the rules count them', () => {
    const failures = ruleOf('job_instance_operation:oncegate_objective_failures:total', 'availability');
    const requests = ruleOf('job_instance_operation:oncegate_objective_requests:total', 'availability');
    expect(wordsIn(failures)).toEqual(FAILED.split('|').sort());
    expect(wordsIn(requests)).toEqual([...FAILED.split('|'), ...SERVED.split('|')].sort());
    const alsoFailed = 'outcome="overloaded", operation!="none"';
    for (const expr of [failures, requests, availability('5m', FAILED)]) expect(expr).toContain(alsoFailed);
    const slow = ruleOf('job_instance_operation:oncegate_objective_failures:total', 'latency');
    expect(slow).toContain(`operation!="none", le="${OBJECTIVES.addedSeconds}"`);
    expect(added(0.99)).toContain('operation!="none"');
    expect(ruleOf('oncegate:objective:target', 'availability')).toBe(`vector(${OBJECTIVES.available})`);
    // The overview shows the latency of 99 %.
    expect(ruleOf('oncegate:objective:target', 'latency')).toBe('vector(0.99)');
  });

  it('and the runbook have one address in dashboards and rules, for one replacement', () => {
    const [{ templating } = { templating: { list: [] } }] = dashboards;
    const base = templating.list.find(({ name }) => name === 'runbook')?.query;
    const urls = rules.flatMap(({ annotations }) => annotations?.runbook_url ?? []);
    expect(urls.length).toBeGreaterThan(20);
    for (const url of urls) expect(url.split('#')[0]).toBe(base);
  });
});
