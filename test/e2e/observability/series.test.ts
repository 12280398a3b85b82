import { writeFileSync } from 'node:fs';
import http, { METHODS } from 'node:http';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { CATALOGUE, type Definition, type LabelValues } from '../../../src/observability/catalogue.ts';
import { send } from '../../support/client.ts';
import { parsedConfig, temporaryFolder } from '../../support/config.ts';
import { payoutBody } from '../../support/payout.ts';
import { rawExchange } from '../../support/raw.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { type Scrape, scrape } from './support/scrape.ts';
import { idle } from './support/traffic.ts';

const REQUESTS = 10_000;
const AT_ONCE = 50;
/** Names that a careless map or exposition takes for something else. All of them are allowed as merchant codes. */
const HOSTILE = [
  '__proto__',
  'constructor',
  'toString',
  'none',
  'other',
  '"},x="1',
  '\\',
  '\\n',
  '{}',
  '#',
  'le',
  '+Inf',
];
const NAMED = ['M-20', '__proto__', '"},x="1'];

const codeOf = (i: number): string => HOSTILE[i] ?? `M-${i}`;
const secretOf = (i: number): string => `sk_unseen_${i}`;

/** As many merchants as requests, each with a key. */
function writeMerchants(): string {
  const path = join(temporaryFolder(), 'keys.yaml');
  const merchants = Array.from({ length: REQUESTS }, (_, i) => ({
    code: codeOf(i),
    keys: [{ id: `unseen-${i}`, dangerouslyPlainSecret: secretOf(i) }],
  }));
  writeFileSync(path, stringify({ merchants }));
  return path;
}

/** The names of a metric's series that can be looked up by the metric's labels. */
const seriesNameOf = ({ type, name }: Definition) => (type === 'histogram' ? `${name}_count` : name);

function combinationsOf(
  labels: Readonly<Record<string, LabelValues>>,
  sets: Record<string, readonly string[]>,
) {
  let found: Record<string, string>[] = [{}];
  for (const [label, values] of Object.entries(labels)) {
    const words = typeof values === 'string' ? (sets[values] ?? []) : values;
    found = found.flatMap((one) => words.map((value) => ({ ...one, [label]: value })));
  }
  return found;
}

let stack: Stack;
let fresh: Scrape;
beforeAll(async () => {
  stack = await openStack({
    auth: {
      keys: { source: 'file', path: writeMerchants() },
      // The sandbox does not know these merchants.
      ...{ forward: 'replace', replaceWith: 'Bearer sk_sandbox_alpha' },
    },
    metrics: { merchants: NAMED },
  });
  fresh = await scrape(stack.adminUrl);
});
afterAll(() => stack.close());

describe('a gateway without traffic', () => {
  it('exports every series that the catalogue declares from the start, at 0 if it counts', () => {
    const names = parsedConfig(stack.config).operations.map(({ name }) => name);
    const operations = [...names, 'other', 'undeclared'];
    const sets = {
      operations,
      'operations, none': [...operations, 'none'],
      merchants: [...NAMED, 'other'],
    };
    let count = 0;
    for (const definition of Object.values<Definition>(CATALOGUE)) {
      if (definition.exists !== 'start') continue;
      const name = seriesNameOf(definition);
      const series = combinationsOf(definition.labels, sets);
      count += series.length;
      for (const labels of series)
        expect.soft(fresh.value(name, labels), `${name} ${JSON.stringify(labels)}`).toBeDefined();
      // No other series.
      expect.soft(fresh.samples.filter((sample) => sample.name === name).length, name).toBe(series.length);
      if (definition.type !== 'counter') continue;
      for (const { value, labels } of fresh.samples.filter((sample) => sample.name === name))
        expect.soft(value, `${name} ${JSON.stringify(labels)}`).toBe(0);
    }
    expect(count).toBeGreaterThan(400);
  });

  it('exports no metric that the catalogue does not define', () => {
    const ours = fresh.families.filter((family) => family.startsWith('oncegate_'));
    const defined: string[] = Object.values(CATALOGUE).map(({ name }) => name);
    expect(ours.filter((family) => !defined.includes(family))).toEqual([]);
  });
});

describe('the series', () => {
  it('do not grow with new merchants, keys, paths, methods, operations and bodies', {
    timeout: 120_000,
  }, async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: AT_ONCE });
    const statuses = new Set<number>();
    let next = 0;
    const sender = async () => {
      for (let i = next++; i < REQUESTS; i = next++) statuses.add(await sent(i, agent));
    };
    await Promise.all(Array.from({ length: AT_ONCE }, sender));
    agent.destroy();
    await rawExchange(stack.port, 'UNSEEN / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
    const after = await idle(stack.adminUrl);
    expect(after.value('oncegate_requests_total')).toBeGreaterThan(REQUESTS);
    for (const merchant of [...NAMED, 'other'])
      expect(after.value('oncegate_merchant_requests_total', { merchant }), merchant).toBeGreaterThan(0);
    expect([...statuses]).toEqual(expect.arrayContaining([200, 201, 400, 401, 422]));
    expect(after.series).toEqual(fresh.series);
    const text = JSON.stringify(after.samples);
    for (const word of ['sk_unseen', 'unseen', 'M-77', '0123456789', '/v']) expect(text).not.toContain(word);
  });
});

/** Every kind of request, with names that nobody has sent before. */
async function sent(i: number, agent: http.Agent): Promise<number> {
  const word = `unseen-${i}-${encodeURIComponent(HOSTILE[i % HOSTILE.length] as string)}`;
  const headers = { Authorization: `Bearer ${secretOf(i)}` };
  const json = { ...headers, 'Content-Type': 'application/json' };
  const post = { method: 'POST', path: '/v1/index.php', headers: json, agent };
  const get = (path: string) => ({ path, headers, agent });
  const payout = JSON.stringify(payoutBody(1));
  const kinds = [
    get(`/${word}/${word}?${word}=1`),
    { ...post, headers: { ...json, 'x-service-idempotency': word }, body: payout },
    { ...post, body: JSON.stringify({ action: HOSTILE[i % HOSTILE.length] }) },
    { ...get('/v2/get_balance'), headers: { Authorization: `Bearer sk_${word}` } },
    { ...post, body: JSON.stringify({ action: word }) },
    { ...post, headers: { ...headers, 'Content-Type': word }, body: `{"${word}` },
    get(`/${word}//${word}`),
    { ...get('/v3/echo'), method: METHODS.filter((method) => method !== 'CONNECT')[i % 30] as string },
    get('/v2/get_balance'),
    { ...post, headers: { ...json, 'x-service-idempotency': `${word} \t"` }, body: word.repeat(9) },
    { ...get(`/${word}`), headers: { ...headers, 'X-Request-Id': word, Origin: word, traceparent: word } },
  ];
  return (await send(stack.url, kinds[i % kinds.length])).status;
}
