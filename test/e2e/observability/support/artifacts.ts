import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';
import type { Dashboard, Panel, PlacedPanel } from '../../../../grafana/source/model.ts';

const root = (path: string): string => fileURLToPath(new URL(`../../../../${path}`, import.meta.url));

export const RULES_FILE = root('config/prometheus.rules.yaml');
export const PROMETHEUS_FILE = root('config/prometheus.yaml');

export const readText = (path: string): string => readFileSync(root(path), 'utf8');
export const readYaml = (path: string) => parse(readText(path));

export interface Rule {
  record?: string;
  alert?: string;
  expr: string;
  for?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
}

/** The rules as Prometheus reads them. */
export const rules: Rule[] = readYaml('config/prometheus.rules.yaml').groups.flatMap(
  ({ rules: of }: { rules: Rule[] }) => of,
);

/** The dashboard as Grafana reads it. */
export const dashboard: Dashboard = JSON.parse(readText('grafana/dashboards/oncegate.json'));

export const isPanel = (placed: PlacedPanel): placed is PlacedPanel & Panel => placed.type !== 'row';
export const panels = dashboard.panels.filter(isPanel);

/** Every query of the dashboard, with a name for test titles. */
export const queries = panels.flatMap(({ title, targets }) =>
  targets.map(({ refId, expr, legendFormat }) => ({ name: `${title} ${refId}`, expr, legendFormat })),
);

/** Names in `{{name}}` of a legend. */
export const legendLabels = (legend: string): string[] =>
  [...legend.matchAll(/\{\{\s*(\w+)\s*\}\}/g)].map(([, label = '']) => label);

/** Names in `$labels.name` of an annotation. */
export const annotationLabels = (annotations: Record<string, string> = {}): string[] =>
  [
    ...Object.values(annotations)
      .join('\n')
      .matchAll(/\$labels\.(\w+)/g),
  ].map(([, label = '']) => label);
