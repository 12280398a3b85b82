import { parse } from 'yaml';
import { problems } from '../../src/lib/problem-table.ts';

interface Example {
  summary: string;
  value: { error: { retry: string } };
}

interface OpenapiDocument {
  components: {
    responses: Record<string, { content?: Record<string, { examples?: Record<string, Example> }> }>;
  };
  paths: Record<string, Record<string, { responses?: Record<string, { $ref?: string }> }>>;
}

/** Every problem that a response of config/openapi.yaml shows, with all statuses of that response. */
export function problemsIn(openapi: string) {
  const { paths, components }: OpenapiDocument = parse(openapi);
  const answers = Object.values(paths)
    .flatMap((path) => Object.values(path))
    .flatMap(({ responses = {} }) => Object.entries(responses));
  return Object.entries(components.responses).flatMap(([name, { content }]) => {
    const own = answers.filter(([, { $ref }]) => $ref?.endsWith(`/${name}`));
    const statuses = [...new Set(own.map(([status]) => status))];
    const examples = content?.['application/problem+json']?.examples ?? {};
    return Object.entries(examples).map(([code, { summary, value }]) => {
      return { code, statuses, summary, retry: value.error.retry };
    });
  });
}

/** The table of the gateway's own answers for merchants, from config/openapi.yaml. */
export function answersTable(openapi: string): string[] {
  const shown = problemsIn(openapi);
  const rows = Object.entries(problems).map(([code, [, executed]]) => {
    const own = shown.filter((one) => one.code === code);
    const texts = own.map(({ statuses, summary }) =>
      // A summary for several statuses names them itself.
      own.length > 1 && statuses.length === 1 ? `${statuses}: ${summary}` : summary,
    );
    const statuses = own.flatMap((one) => one.statuses).sort();
    return `| \`${code}\` | ${statuses.join(', ')} | \`${own[0]?.retry}\` | ${executed} | ${texts.join(' ')} |`;
  });
  return ['| code | status | `retry` | was it executed? | what to do |', '|---|---|---|---|---|', ...rows];
}
