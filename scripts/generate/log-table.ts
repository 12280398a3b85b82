import * as z from 'zod';
import { LOG_EVENTS } from './log-events.ts';

/** A row for each message: its levels, its fields and what it means; and a row for each field. */
export function logTable(): string[] {
  const rows = LOG_EVENTS.map(({ msg, levels, meaning, fields }) => {
    const names = Object.keys(fields).map((name) => `\`${name}\`${fields[name]?.isOptional() ? '?' : ''}`);
    return `| ${msg} | ${levels.join(', ')} | ${names.join(', ')} | ${meaning} |`;
  });
  const described = new Map<string, string>();
  for (const { fields } of LOG_EVENTS)
    for (const [name, field] of Object.entries(fields)) {
      const inner = field instanceof z.ZodOptional ? (field.unwrap() as z.ZodType) : field;
      const text = field.description ?? inner.description;
      if (text === undefined) throw new Error(`the field ${name} has no description`);
      if (!described.has(name)) described.set(name, text);
    }
  const list = [...described].map(([name, text]) => `| \`${name}\` | ${text} |`);
  const heads = ['| message (`msg`) | level | fields | meaning |', '|---|---|---|---|'];
  return [...heads, ...rows, '', '| field | meaning |', '|---|---|', ...list];
}
