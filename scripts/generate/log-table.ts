import { EVENTS } from '../../src/telemetry/events.ts';
import type { LogEvent } from '../../src/telemetry/log-event.ts';

/** A row for each message: its levels, its fields and what it means; and a row for each field. */
export function logTable(): string[] {
  const events = Object.values<LogEvent>(EVENTS);
  const rows = events.map(({ message, level, laterLevel, meaning, fields }) => {
    const names = Object.entries(fields).map(
      ([name, { isOptional }]) => `\`${name}\`${isOptional ? '?' : ''}`,
    );
    const levels = laterLevel ? `${level}, ${laterLevel}` : level;
    const linked = meaning.replace(/\bOncegate[A-Z]\w+/g, (alert) => `[${alert}](runbook/${alert}.md)`);
    return `| ${message} | ${levels} | ${names.join(', ')} | ${linked} |`;
  });
  const described = new Map<string, string>();
  for (const { fields } of events)
    for (const [name, { about }] of Object.entries(fields))
      if (!described.has(name)) described.set(name, about);
  const list = [...described].map(([name, about]) => `| \`${name}\` | ${about} |`);
  const heads = ['| message (`msg`) | level | fields | meaning |', '|---|---|---|---|'];
  return [...heads, ...rows, '', '| field | meaning |', '|---|---|', ...list];
}
