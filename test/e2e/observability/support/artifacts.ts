import { readdirSync } from 'node:fs';
import { parse } from 'yaml';
import { ROOT, read } from '../../../support/repository.ts';

export const RULES_FILE = `${ROOT}config/prometheus.rules.yaml`;
export const PROMETHEUS_FILE = `${ROOT}config/prometheus.yaml`;

export const readYaml = (path: string) => parse(read(path));

export interface Rule {
  record?: string;
  alert?: string;
  expr: string;
  for?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
}

/** The names of the groups of rules, in the order of the file. */
export const ruleGroups: string[] = readYaml('config/prometheus.rules.yaml').groups.map(
  ({ name }: { name: string }) => name,
);

/** The rules as Prometheus reads them. */
export const rules: Rule[] = readYaml('config/prometheus.rules.yaml').groups.flatMap(
  ({ rules: of }: { rules: Rule[] }) => of,
);

/** Parsed JSON of Grafana, whose form the tests check. */
type Parsed = ReturnType<typeof JSON.parse>;
export type Link = Parsed;

export interface Panel {
  [member: string]: Parsed;
  targets: { refId: string; datasource: object; expr: string; legendFormat: string }[];
  links: Link[];
}

export interface Dashboard {
  uid: string;
  links: Link[];
  templating: { list: Parsed[] };
  annotations: { list: { name: string; datasource: object; expr: string }[] };
  /** Rows included. A closed row has its own. */
  panels: Panel[];
}

export const DASHBOARDS = `${ROOT}grafana/dashboards/`;

/** The dashboards as Grafana reads them. */
export const dashboards: Dashboard[] = readdirSync(DASHBOARDS).map((file) =>
  JSON.parse(read(`grafana/dashboards/${file}`)),
);

export const isRow = ({ type }: Panel): boolean => type === 'row';

/** Rows, and the panels within closed rows, included. */
export const allPanels = ({ panels: placed }: Dashboard): Panel[] =>
  placed.flatMap((panel) => [panel, ...(panel.panels ?? [])]);

/** Every panel but the rows, and where it is. */
export const panels: (Panel & { uid: string })[] = dashboards.flatMap((dashboard) =>
  allPanels(dashboard)
    .filter((panel) => !isRow(panel))
    .map((panel) => ({ uid: dashboard.uid, ...panel })),
);

/** Every query of the dashboards, with a name for test titles. */
export const queries = panels.flatMap(({ uid, type, title, targets }) =>
  targets.map((target) => ({ name: `${uid}, ${title}, ${target.refId}`, uid, type, title, ...target })),
);

/** Names in `$labels.name` of an annotation. */
export const annotationLabels = (annotations: Record<string, string> = {}): string[] =>
  [
    ...Object.values(annotations)
      .join('\n')
      .matchAll(/\$labels\.(\w+)/g),
  ].map(([, label = '']) => label);
