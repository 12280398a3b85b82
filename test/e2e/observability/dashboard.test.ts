import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { DASHBOARD_FILE, dashboardText } from '../../../grafana/dashboard.ts';
import { parsedConfig } from '../../support/config.ts';
import { eachRow } from '../../support/each-row.ts';
import { dashboard, panels, readText, readYaml, rules } from './support/artifacts.ts';

describe('the dashboard', () => {
  it('is generated from its source', () => {
    expect(readFileSync(DASHBOARD_FILE, 'utf8'), 'run: node grafana/dashboard.ts').toBe(dashboardText());
  });

  it('gives each panel a unique number and title', () => {
    const ids = dashboard.panels.map(({ id }) => id);
    expect(new Set(ids).size).toBe(ids.length);
    expect(ids.every((id) => Number.isInteger(id) && id > 0)).toBe(true);
    const titles = dashboard.panels.map(({ title }) => title);
    expect(new Set(titles).size).toBe(titles.length);
  });

  it('lies on the grid without overlaps or gaps at the left', () => {
    const taken = new Map<string, string>();
    for (const { title, gridPos } of dashboard.panels) {
      expect(gridPos.x + gridPos.w, title).toBeLessThanOrEqual(24);
      for (const cell of cellsOf(gridPos)) {
        expect(taken.get(cell), `${title} at ${cell}`).toBeUndefined();
        taken.set(cell, title);
      }
    }
    const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
    for (let y = 0; y < bottom; y++) for (const x of [0, 23]) expect(taken.has(`${x},${y}`)).toBe(true);
  });

  it('begins with the row for the person on call', () => {
    expect(dashboard.panels[0]).toMatchObject({
      type: 'row',
      title: 'Is the promise kept?',
      gridPos: { y: 0 },
    });
  });

  it('explains itself in every panel', () =>
    eachRow(
      panels,
      ({ title }) => title,
      ({ description, fieldConfig, datasource, targets }) => {
        expect(description.length).toBeGreaterThan(60);
        expect(description).toMatch(/\.$/);
        expect(fieldConfig.defaults.unit).toMatch(/^(?:short|reqps|ops|s|bytes|percentunit)$/);
        const values = fieldConfig.defaults.thresholds.steps.map(({ value }) => value);
        expect(values[0]).toBeNull();
        expect(values.slice(1)).toEqual(values.slice(1).toSorted((a, b) => Number(a) - Number(b)));
        const sources = [datasource, ...targets.map((target) => target.datasource)];
        for (const source of sources) expect(source).toEqual({ type: 'prometheus', uid: `\${datasource}` });
        expect(new Set(targets.map(({ refId }) => refId)).size).toBe(targets.length);
        expect(targets.length).toBeGreaterThan(0);
      },
    ));

  it('can be filtered by data source, job, instance and operation', () => {
    const { list } = dashboard.templating;
    expect(list.map(({ name }) => name)).toEqual(['datasource', 'job', 'instance', 'operation']);
    for (const { type, multi, includeAll, allValue } of list.slice(1)) {
      expect({ type, multi, includeAll, allValue }).toMatchObject({
        type: 'query',
        multi: true,
        includeAll: true,
      });
      // `.*` would include other jobs.
      expect(allValue).toBeUndefined();
    }
    for (const { title, targets } of panels)
      for (const { expr } of targets) expect(expr, title).toContain('job=~"$job", instance=~"$instance"');
  });

  it('is not tied to one Grafana instance', () => {
    expect(dashboard).toMatchObject({ id: null, uid: 'oncegate', schemaVersion: 39, editable: false });
  });
});

function* cellsOf({ x, y, w, h }: { x: number; y: number; w: number; h: number }): Generator<string> {
  for (let right = x; right < x + w; right++)
    for (let down = y; down < y + h; down++) yield `${right},${down}`;
}

/** All texts for the person on call. */
const texts = [
  ...panels.map(({ title, description }) => ({ name: title, text: description })),
  ...rules
    .filter(({ alert }) => alert)
    .map(({ alert, annotations = {} }) => ({ name: alert, text: Object.values(annotations).join('\n') })),
];

describe('the texts for the person on call', () => {
  const upstream = { url: 'http://127.0.0.1:1' };
  const stores = [{ kind: 'sqlite' as const }, { kind: 'redis' as const, url: 'redis://127.0.0.1:1' }];
  const configs = stores.map((store) =>
    parsedConfig({ upstream, store, admin: { token: 'a token of sixteen' } }),
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
        expect(options.filter((option) => !places.some((place) => hasOption(place, option)))).toEqual([]);
      },
    ));

  it('name panels and alerts that exist', () =>
    eachRow(
      texts,
      ({ name }) => name,
      ({ text }) => {
        const titles = dashboard.panels.map(({ title }) => title);
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
        for (const [, message = ''] of messages) expect(sources).toContain(`'${message}'`);
      },
    ));

  const sources = readdirSync(new URL('../../../src/', import.meta.url), {
    recursive: true,
    encoding: 'utf8',
  })
    .filter((file) => file.endsWith('.ts'))
    .map((file) => readText(`src/${file}`))
    .join('\n');
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

  it('loads the dashboard', () => {
    const { apiVersion, providers } = readYaml('grafana/provisioning/dashboards/oncegate.yaml');
    expect(apiVersion).toBe(1);
    expect(providers).toHaveLength(1);
    const [{ type, allowUiUpdates, options }] = providers;
    expect({ type, allowUiUpdates }).toEqual({ type: 'file', allowUiUpdates: false });
    // The README mounts the folder there.
    expect(readText('grafana/README.md')).toContain(`/grafana/dashboards:${options.path}:ro`);
    expect(readdirSync(new URL('../../../grafana/dashboards/', import.meta.url))).toEqual(['oncegate.json']);
  });
});
