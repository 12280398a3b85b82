import type { Builder } from '@grafana/grafana-foundation-sdk/cog';
import {
  AnnotationQueryBuilder,
  // biome-ignore lint/suspicious/noDeprecatedImports: its successor writes dashboard schema 2, which Grafana 10 and 11 cannot read
  DashboardBuilder,
  DashboardCursorSync,
  DashboardLinkBuilder,
  DashboardLinkPlacement,
  DashboardLinkType,
  DatasourceVariableBuilder,
  type Panel,
  QueryVariableBuilder,
  RowBuilder,
  type RowPanel,
  TextBoxVariableBuilder,
  VariableHide,
  VariableRefresh,
  VariableSort,
} from '@grafana/grafana-foundation-sdk/dashboard';
import { type Page, TAG, toLogs, UIDS } from './links.ts';
import { dataSource } from './panels.ts';
import { GATEWAYS } from './queries.ts';

/** Schema version 1, which `DashboardBuilder` makes. */
export type Dashboard = ReturnType<DashboardBuilder['build']>;

/** What differs between installations. */
export interface Installation {
  /** The address of the folder `docs`. */
  runbook: string;
  /** LogQL that selects the gateways' log lines in Loki. Its values stand in backticks: it becomes a part of JSON. */
  logStream: string;
}

/** Panels under a heading. */
export interface Row {
  title: string;
  panels: Builder<Panel>[];
}

export interface PageOptions {
  page: Page;
  title: string;
  description: string;
  /** Variables beside data source, job and instance: a label, and a metric that has it. */
  choices?: { name: string; label: string; metric: string }[];
  rows: Row[];
  /** Its rows are closed at first. */
  isClosed?: boolean;
}

/** Grafana 10 to 12 read it. The SDK would write that of the newest Grafana, whose changes these dashboards do not use. */
const SCHEMA_VERSION = 39;

export function dashboardOf(
  { page, title, description, choices = [], rows, isClosed = false }: PageOptions,
  installation: Installation,
): Dashboard {
  const builder = new DashboardBuilder(`oncegate: ${title}`)
    .uid(UIDS[page])
    .description(description)
    .tags([TAG])
    .readonly()
    .tooltip(DashboardCursorSync.Crosshair)
    .timezone('browser')
    .refresh('30s')
    .time({ from: 'now-6h', to: 'now' })
    .links(links)
    .variables([
      sourceOf('datasource', 'Data source', 'prometheus'),
      chosenFrom('job', 'Job', 'oncegate_in_flight'),
      chosenFrom('instance', 'Instance', 'oncegate_in_flight{job=~"$job"}'),
      ...choices.map(({ name, label, metric }) => chosenFrom(name, label, `${metric}{job=~"$job"}`)),
      text('request_id', 'Request id', '').description('For the link "Log lines of this request id".'),
      sourceOf('logs', 'Logs', 'loki').hide(VariableHide.HideVariable),
      text('log_stream', 'Log stream', installation.logStream).hide(VariableHide.HideVariable),
      text('runbook', 'Runbook', installation.runbook).hide(VariableHide.HideVariable),
    ])
    .annotations(annotations);
  for (const row of rows) {
    const heading = new RowBuilder(row.title).collapsed(isClosed);
    // A closed row holds its panels. An open one is followed by them.
    if (isClosed) for (const panel of row.panels) heading.withPanel(panel);
    builder.withRow(heading);
    if (!isClosed) for (const panel of row.panels) builder.withPanel(panel);
  }
  const built = asShown(builder.build());
  // Grafana wants a number for each panel, which the SDK leaves out.
  let id = 0;
  const numbered = <T extends object>(panel: T) => ({ ...panel, id: ++id });
  const panels = (built.panels ?? []).map((panel) =>
    numbered(panel.type === 'row' ? { ...panel, panels: (panel as RowPanel).panels.map(numbered) } : panel),
  );
  return { ...built, id: null, version: 1, schemaVersion: SCHEMA_VERSION, panels };
}

/** The SDK puts every link and annotation into a closed menu, and cannot be told otherwise. */
const asShown = (built: Dashboard): Dashboard =>
  JSON.parse(
    JSON.stringify(built, (_key, value) =>
      value === DashboardLinkPlacement.InControlsMenu ? undefined : value,
    ),
  );

/** At the top of each dashboard. */
const links = [
  new DashboardLinkBuilder('oncegate')
    .type(DashboardLinkType.Dashboards)
    .tags([TAG])
    .includeVars(true)
    .keepTime(true),
  new DashboardLinkBuilder('Runbook')
    .type(DashboardLinkType.Link)
    .icon('doc')
    .tooltip('docs/runbook/README.md')
    .url(`\${runbook:raw}/runbook/README.md`)
    .targetBlank(true),
  toLogs('Log lines of this request id', `requestId=\`\${request_id:percentencode}\``)
    .icon('doc')
    .tooltip('Enter the request id above. Needs Loki as a data source.'),
];

const annotation = (name: string, color: string, expr: string) =>
  new AnnotationQueryBuilder()
    .name(name)
    .datasource(dataSource)
    .enable(true)
    .hide(false)
    .iconColor(color)
    .expr(expr)
    .step('60s')
    .useValueForTime(false);

/** The label `job` is absent from alerts about all jobs. */
export const FIRING = 'ALERTS{alertname=~"Oncegate.*", alertstate="firing", severity!="info", job=~"$job|"}';

const builds = `max by (job, version, commit) (oncegate_build_info{${GATEWAYS}})`;
/** An hour: a gateway that was away and is back has no new version. */
const buildsBefore = `max by (job, version, commit) (max_over_time(oncegate_build_info{${GATEWAYS}}[1h] offset 1m))`;

const annotations = [
  annotation('Alerts', 'red', FIRING)
    .titleFormat('{{alertname}}')
    .textFormat('{{instance}} {{operation}}')
    .tagKeys('severity'),
  annotation('New versions', 'blue', `${builds} unless ${buildsBefore}`)
    .titleFormat('{{version}} runs')
    .textFormat('{{job}}, commit {{commit}}'),
  annotation(
    'Changed configurations',
    'purple',
    `sum by (job, instance, result) (increase(oncegate_config_reloads_total{${GATEWAYS}}[2m])) > 0`,
  )
    .titleFormat('configuration: {{result}}')
    .textFormat('{{instance}}')
    .tagKeys('result'),
];

/** A data source of Grafana, the first one at the beginning; none if there is none. */
const sourceOf = (name: string, label: string, type: string) =>
  new DatasourceVariableBuilder(name).label(label).type(type).regex('').current({ text: '', value: '' });

const text = (name: string, label: string, value: string) =>
  new TextBoxVariableBuilder(name)
    .label(label)
    .defaultValue(value)
    .current({ text: value, value })
    .options([{ selected: true, text: value, value }]);

/** One, several or all values of a label. "All" is the list of the values, not `.*`: `up` also has the jobs of others. */
function chosenFrom(name: string, label: string, metric: string): QueryVariableBuilder {
  const query = `label_values(${metric}, ${name})`;
  return (
    new QueryVariableBuilder(name)
      .label(label)
      .datasource(dataSource)
      .definition(query)
      .query({ qryType: 1, query, refId: 'PrometheusVariableQueryEditor-VariableQuery' })
      .current({ selected: true, text: ['All'], value: ['$__all'] })
      .includeAll(true)
      .multi(true)
      .sort(VariableSort.AlphabeticalAsc)
      // Refreshed with the time range: a gateway that is down still has its past.
      .refresh(VariableRefresh.OnTimeRangeChanged)
  );
}
