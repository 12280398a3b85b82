import { problemCodes } from '../../src/lib/problem-table.ts';
import { CATALOGUE } from '../../src/telemetry/catalogue.ts';
import type { Definition, LabelValues } from '../../src/telemetry/definition.ts';
import { OUTCOMES } from '../../src/telemetry/label-values.ts';
import { NOTES } from './metric-notes.ts';

/** The headings of the page, each with the first metric under it: one for each group of the catalogue. */
const SECTIONS: Partial<Record<keyof typeof CATALOGUE, string>> = {
  requests: 'Requests',
  merchantRequests: 'Requests of named merchants',
  hits: 'Idempotency keys',
  inDoubt: 'Keys in doubt',
  stale: 'Writes that did not go as they should',
  storeSeconds: 'The store',
  upstreamSeconds: 'The backend',
  keys: 'Secret keys',
  handshakesFailed: 'TLS',
  spans: 'Traces',
  configReloads: 'The configuration, and what runs',
};

const INTRODUCTION = `# Metrics

For the person who writes a query or a panel. \`npm run generate\` writes this page from the
[catalogue](../src/telemetry/catalogue.ts). During an incident, read [the runbook](runbook/README.md). Beside these, the
gateway exports the usual metrics of its process (\`process_…\`, \`nodejs_…\`).

- **Units** are in the names: \`_seconds\`, \`_bytes\`, \`_timestamp_seconds\` (since 1970), \`_total\` (a count since the start of the process).
- **Gateways** are combined by the query: the column *gateways* says how. \`max\` is also for what all gateways read from one store, such
  as keys in doubt: their sum would count each key once for each gateway. If gateways use several stores, take the maximum for each
  store and then the sum: \`oncegate_store_info\` says which store a gateway is on.
- **Buckets** of \`oncegate_request_duration_seconds\`, \`oncegate_upstream_duration_seconds\` and
  \`oncegate_merchant_request_duration_seconds\` are close together around the time limits of the configuration at the start
  (\`upstream.responseTimeoutMs\`, the longest \`waitMs\`, \`lock.leaseMs\`), and from a second on each is at most a third larger than the one before. So
  a quantile is wrong by a third at most from a second on, and by a few percent near a limit. Gateways with other limits have other buckets: give all of them the same.
  A reload that changes \`waitMs\` does not move them, because the histograms would begin at 0 again; a restart does.
- **Series exist from the start**, at 0, for every combination of label values, unless the column *exists* says otherwise: rate() does not
  see the first event of a series that begins with it.
- **Labels are bounded.** \`operation\`: a name of the configuration, \`other\` or \`undeclared\`
  ([Declare operations](configuration.md#declare-operations)); in the metrics marked with \`none\`, that too: \`none\` are requests
  that are refused before they are identified. \`merchant\`: a code of [\`metrics.merchants\`](configuration.md#metrics-of-single-merchants), or
  \`other\` for all others. \`outcome\`: see [below](#outcomes).
- **Exemplars**: a scraper that asks for OpenMetrics gets the trace id (\`trace_id\`) of the newest request of each bucket, in the
  histograms marked so. The text format has none. Start Prometheus with \`--enable-feature=exemplar-storage\` to keep them.
`;

const CODES: readonly string[] = problemCodes;

const OUTCOME_SECTION = `## Outcomes

The gateway's own words: ${listed(OUTCOMES.filter((word) => !CODES.includes(word)))}. \`forwarded\` went through the executor without a key,
\`passed_through\` was streamed. A response with an \`unknown\` status is passed on and counted as
\`outcome_unknown\`. The codes of its own answers ([Merchants](merchants.md)): ${listed(CODES)}.
`;

function listed(words: readonly string[]): string {
  return words.map((word) => `\`${word}\``).join(', ');
}

function labelText(label: string, values: LabelValues): string {
  if (values === 'operations, none') return `\`${label}\` (or \`none\`)`;
  if (typeof values === 'string' || values === OUTCOMES) return `\`${label}\``;
  return `\`${label}\`: ${values.join(', ')}`;
}

function row({ type, name, help, labels, combine, exists, hasExemplars }: Definition, note: string): string {
  const named = Object.entries(labels).map(([label, values]) => labelText(label, values));
  const meaning = `${help}${hasExemplars ? ' (with exemplars)' : ''}`;
  const cells = [`\`${name}\``, type, named.join('; '), meaning, combine];
  return `| ${[...cells, exists === 'start' ? '' : exists, note].join(' | ')} |`;
}

/** The text of docs/metrics.md. */
export function metricsReference(): string {
  const lines = [INTRODUCTION];
  for (const [field, definition] of Object.entries<Definition>(CATALOGUE)) {
    const heading = SECTIONS[field as keyof typeof CATALOGUE];
    if (heading) {
      if (lines.length > 1) lines.push('');
      lines.push(`## ${heading}`, '');
      lines.push(
        '| metric | type | labels | meaning | gateways | exists | what to know, and to do |',
        '|---|---|---|---|---|---|---|',
      );
    }
    lines.push(row(definition, NOTES[field as keyof typeof CATALOGUE]));
  }
  return `${lines.join('\n')}\n\n${OUTCOME_SECTION}`;
}
