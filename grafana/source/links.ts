import { DashboardLinkBuilder, DashboardLinkType } from '@grafana/grafana-foundation-sdk/dashboard';

/** The dashboards' uids, which are a part of their addresses. */
export const UIDS = {
  overview: 'oncegate-overview',
  internals: 'oncegate-internals',
} as const;

export type Page = keyof typeof UIDS;

/** The tag by which each dashboard lists the others. */
export const TAG = 'oncegate';

const link = (title: string, url: string) =>
  new DashboardLinkBuilder(title).type(DashboardLinkType.Link).url(url);

/** Another dashboard, with the same time range and the same choices. */
export const toPage = (page: Page, title: string) =>
  link(title, `/d/${UIDS[page]}?\${__url_time_range}&\${__all_variables}`);

/** A page of the documents, by its path in `docs`. */
export const toRunbook = (page: string) =>
  link('What to do (runbook)', `\${runbook:raw}/${page}`).targetBlank(true);

/** Log lines in Loki, in Grafana's Explore. `filter` is LogQL, without double quotes. */
export const toLogs = (title: string, filter: string) => link(title, exploreUrl(filter)).targetBlank(true);

/** The value of a label of the line that was clicked. */
export const labelOf = (label: string) => `\${__field.labels.${label}}`;

/** Grafana replaces the variables, so they must stay as they are while the rest is encoded. */
function exploreUrl(filter: string): string {
  const panes = {
    logs: {
      datasource: `\${logs}`,
      queries: [{ refId: 'A', expr: `\${log_stream:percentencode} | json | ${filter}` }],
      range: { from: `\${__from}`, to: `\${__to}` },
    },
  };
  const encoded = JSON.stringify(panes)
    .split(/(\$\{[\w.:]+\})/)
    .map((part, at) => (at % 2 === 1 ? part : encodeURIComponent(part)))
    .join('');
  return `/explore?schemaVersion=1&panes=${encoded}`;
}
