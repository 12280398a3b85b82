import { parseDocument, type YAMLMap, type YAMLSeq } from 'yaml';

/** A placeholder: whoever runs Prometheus puts in the address of their copy of this repository. */
const BASE = 'https://runbooks.example/oncegate/docs/runbook/';

/** The parts of each alert's page in the runbook, in this order. */
const PARTS = ['Meaning', 'Impact', 'First look', 'Action'] as const;

export type AlertPage = { alert: string; severity: string } & Record<(typeof PARTS)[number], string>;

const FORM = new RegExp(
  `^# (\\w+)\\n\\n\\*(critical|warning|info)\\*\\n\\n${PARTS.map((part) => `- \\*\\*${part}:\\*\\*\\s(.+)`).join('')}$`,
  's',
);

/** @throws Error if the page lacks a part, or has another order */
export function alertPage(text: string): AlertPage {
  const [, alert, severity, ...found] = FORM.exec(text) ?? [];
  if (alert === undefined || severity === undefined)
    throw new Error(`docs/runbook: the page of an alert has another form: ${text}`);
  const named = PARTS.map((part, i) => [part, found[i]?.replace(/\s+/g, ' ').trim() ?? '']);
  return { alert, severity, ...Object.fromEntries(named) };
}

/**
 * The rules with meaning, impact and address of each alert from the runbook, as the annotations `description` and `runbook_url`.
 *
 * @throws Error that names an alert without a page, or a page without an alert
 */
export function withTexts(rules: string, pages: readonly AlertPage[]): string {
  const document = parseDocument(rules);
  const missing = new Map(pages.map((page) => [page.alert, page]));
  for (const group of (document.get('groups') as YAMLSeq<YAMLMap>).items)
    for (const rule of (group.get('rules') as YAMLSeq<YAMLMap>).items) {
      const alert = rule.get('alert') as string | undefined;
      if (alert === undefined) continue;
      const page = missing.get(alert);
      if (!page) throw new Error(`docs/runbook has no page for ${alert}`);
      missing.delete(alert);
      rule.setIn(['annotations', 'description'], withoutMarkdown(`${page.Meaning} ${page.Impact}`));
      rule.setIn(['annotations', 'runbook_url'], `${BASE}${alert}.md`);
    }
  if (missing.size > 0) throw new Error(`there are no alerts ${[...missing.keys()].join(', ')}`);
  return document.toString({ lineWidth: 130 });
}

/** A link in parentheses only says where to read on. */
const withoutMarkdown = (text: string): string =>
  text
    .replace(/ \(\[[^\]]+\]\([^)]+\)\)/g, '')
    .replace(/\[([^\]]+)\]\([^)]+\)/g, '$1')
    .replaceAll('`', '');
