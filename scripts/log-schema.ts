/** `node scripts/log-schema.ts` writes docs/log.schema.json, and the table of docs/operations.md, from the events of the log. */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { LOG_EVENTS, logLine } from '../src/observability/log-events.ts';

const SCHEMA = fileURLToPath(new URL('../docs/log.schema.json', import.meta.url));
const PAGE = fileURLToPath(new URL('../docs/operations.md', import.meta.url));
const TABLE =
  /(<!-- node scripts\/log-schema\.ts writes this table -->\n).*?(?=\n<!-- end of the table -->)/s;

export function logJsonSchema(): object {
  const { $schema, ...schema } = z.toJSONSchema(logLine);
  const title = 'A line of the log of oncegate';
  return { $schema, title, ...schema };
}

/** A row for each message: its levels, its fields and what it means. */
function logTable(): string {
  const rows = LOG_EVENTS.map(({ msg, levels, meaning, fields }) => {
    const names = Object.entries(fields as z.ZodRawShape).map(
      ([name, field]) => `\`${name}\`${(field as z.ZodType).isOptional() ? '?' : ''}`,
    );
    return `| ${msg} | ${levels.join(', ')} | ${names.join(', ')} | ${meaning} |`;
  });
  const described = new Map<string, string>();
  for (const { fields } of LOG_EVENTS)
    for (const [name, field] of Object.entries(fields as Record<string, z.ZodType>)) {
      const inner = field instanceof z.ZodOptional ? (field.unwrap() as z.ZodType) : field;
      const text = field.description ?? inner.description;
      if (text === undefined) throw new Error(`the field ${name} has no description`);
      if (!described.has(name)) described.set(name, text);
    }
  const list = [...described].map(([name, text]) => `| \`${name}\` | ${text} |`);
  return [
    '| message (`msg`) | level | fields | meaning |',
    '|---|---|---|---|',
    ...rows,
    '',
    '| field | meaning |',
    '|---|---|',
    ...list,
  ].join('\n');
}

export const withTable = (page: string): string =>
  page.replace(TABLE, (_, mark: string) => mark + logTable());

if (import.meta.main) {
  writeFileSync(SCHEMA, `${JSON.stringify(logJsonSchema(), undefined, 2)}\n`);
  writeFileSync(PAGE, withTable(readFileSync(PAGE, 'utf8')));
}
