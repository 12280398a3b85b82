import { parseDocument, type YAMLMap, type YAMLSeq } from 'yaml';

/** A placeholder: whoever runs Prometheus puts in the address of their copy of this repository. */
const BASE = 'https://runbooks.example/oncegate/docs/operations.md';

/** The parts of each alert's section in the runbook, in this order. */
const PARTS = ['Meaning', 'Impact', 'First look', 'Action'] as const;

export type AlertSection = { alert: string; severity: string } & Record<(typeof PARTS)[number], string>;

/** @throws Error that names the section that lacks a part, or has another order */
export function alertSections(runbook: string): AlertSection[] {
  const [, alerts = ''] = runbook.split(/^## Alerts$/m);
  const [section = ''] = alerts.split(/^## /m);
  return section
    .split(/^### /m)
    .slice(1)
    .map((text) => {
      const parts = PARTS.map((part) => `- \\*\\*${part}:\\*\\*\\s(.+)`).join('');
      const form = new RegExp(`^(\\w+)\\n\\n\\*(critical|warning|info)\\*\\n\\n${parts}$`, 's');
      const [, alert, severity, ...found] = form.exec(text) ?? [];
      if (alert === undefined || severity === undefined)
        throw new Error(`docs/operations.md: the section has another form: ${text}`);
      const named = PARTS.map((part, i) => [part, found[i]?.replace(/\s+/g, ' ').trim() ?? '']);
      return { alert, severity, ...Object.fromEntries(named) };
    });
}

/**
 * The rules with meaning, impact and address of each alert from the runbook, as the annotations `description` and `runbook_url`.
 *
 * @throws Error that names an alert without a section, or a section without an alert
 */
export function withTexts(rules: string, sections: readonly AlertSection[]): string {
  const document = parseDocument(rules);
  const missing = new Map(sections.map((section) => [section.alert, section]));
  for (const group of (document.get('groups') as YAMLSeq<YAMLMap>).items)
    for (const rule of (group.get('rules') as YAMLSeq<YAMLMap>).items) {
      const alert = rule.get('alert') as string | undefined;
      if (alert === undefined) continue;
      const section = missing.get(alert);
      if (!section) throw new Error(`docs/operations.md has no section for ${alert}`);
      missing.delete(alert);
      rule.setIn(['annotations', 'description'], withoutMarkdown(`${section.Meaning} ${section.Impact}`));
      rule.setIn(['annotations', 'runbook_url'], `${BASE}#${alert.toLowerCase()}`);
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
