import { readFileSync } from 'node:fs';
import { problemCodes } from '../../src/kernel/problem.ts';
import { FAULTS } from './faults.ts';
import type { Report } from './run-client.ts';

const HEADING = '## What common clients report';

const { dependencies } = JSON.parse(
  readFileSync(new URL('./programs/package.json', import.meta.url), 'utf8'),
);
const version = (name: string) => `${name} ${dependencies[name]}`;

/** The names of the clients in the table, by the name of their program. */
export const CLIENTS: Record<string, string> = {
  stripe: version('stripe'),
  square: version('square'),
  axios: `${version('axios')}, ${version('axios-retry')}`,
  got: version('got'),
  ky: version('ky'),
  undici: `${version('undici')}, RetryAgent`,
  curl: 'curl --retry 3 --retry-all-errors --fail',
};

/** The table that docs/merchants.md shows. `reports` are in the order of FAULTS. */
export function tableOf(reports: ReadonlyMap<string, readonly Report[]>): string[] {
  const rows = Object.entries(CLIENTS).map(([client, title]) => [
    title,
    ...(reports.get(client) ?? []).map(cellOf),
  ]);
  const head = ['client', ...FAULTS.map(({ title }) => title)];
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`);
}

function cellOf(report: Report): string {
  if (report.kind === 'result') return 'result';
  const { error, status, code } = report;
  const name = error.includes(' ') ? error : `\`${error}\``;
  if (status === undefined) return name;
  // All other codes come from the backend.
  const isOurs = problemCodes.some((ours) => ours === code);
  return `${name}, ${status}${isOurs ? ` \`${code}\`` : ''}`;
}

export function tableIn(markdown: string): string[] {
  const [, section = ''] = markdown.split(`${HEADING}\n`);
  const [body = ''] = section.split('\n## ');
  return body.split('\n').filter((line) => line.startsWith('|'));
}
