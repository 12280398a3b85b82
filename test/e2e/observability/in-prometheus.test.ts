import { readFileSync, writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { scrape } from '../../support/metrics.ts';
import { type Sample, startPrometheus } from '../../support/prometheus.ts';
import { startRedis } from '../../support/redis-server.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { stackForFile } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { dashboards, queries, RULES_FILE, rules } from './support/artifacts.ts';
import { busyTraffic, sections } from './support/traffic.ts';

const ASK_AGAIN_MS = 15_000;

const redis = await startRedis();
/** With Redis, which dies in the end. */
const busy = await stackForFile({
  ...onRedis(redis),
  ...sections,
  metrics: { merchants: ['M-ALPHA'] },
  idempotency: { ...sections.idempotency, countDoubtsEveryMs: 200 },
});
/** Without any request. */
const quiet = await stackForFile();
const spawned = await spawnGateway({ ...quiet.config, upstream: { url: quiet.sandbox.url } });
const host = ({ adminUrl }: { adminUrl: string }) => new URL(adminUrl).host;
/** What Prometheus scrapes. */
const instances = { busy: host(busy), process: host(spawned), quiet: host(quiet) };
const prometheus = await startPrometheus(Object.values(instances), readFileSync(RULES_FILE, 'utf8'));
await until(async () => (await prometheus.query('up == 1')).length === Object.keys(instances).length);

await Promise.all([busyTraffic(busy), load(spawned.url), changeConfiguration(spawned)]);
const { families } = await scrape(busy.adminUrl);
// It shows the keys in doubt before its Redis dies.
const inDoubt = `sum(oncegate_keys_in_doubt{instance="${instances.busy}"}) > 0`;
await until(async () => (await prometheus.query(inDoubt)).length === 1);
await redis.kill();
await withdraw(busy.url, { key: 'no-store' });

/** Payouts, retries and broken connections, several at once. */
async function load(url: string): Promise<void> {
  const one = async (at: number) => {
    const fault = at % 10 === 0 ? 'execute-then-reset' : undefined;
    for (let tries = 0; tries < 2; tries++)
      await withdraw(url, { key: `load-${at}`, ...(fault && { fault }) });
  };
  await Promise.all(Array.from({ length: 60 }, (_, at) => one(at)));
}

async function changeConfiguration({ file, child }: SpawnedGateway): Promise<void> {
  writeFileSync(file, `${readFileSync(file, 'utf8')}\nidempotency: { maxWaiters: 4999 }\n`);
  child.kill('SIGHUP');
}

/** Fills in variables as Grafana does: several chosen values become alternatives of a regular expression. */
function asGrafana(expr: string, instance: string | undefined, own: Record<string, string>): string {
  const values: Record<string, string> = {
    ...own,
    job: 'oncegate',
    instance: instance ?? Object.values(instances).join('|'),
    __rate_interval: '1m',
  };
  return expr.replace(/\$(\w+)/g, (_whole, name: string) => {
    const value = values[name];
    if (value === undefined) throw new Error(`no value for ${name} in ${expr}`);
    return value;
  });
}

/** The values of a dashboard's choices, as Grafana asks Prometheus for them: those that are not chosen otherwise. */
async function choicesOf(uid: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  const variables = dashboards.find((dashboard) => dashboard.uid === uid)?.templating.list ?? [];
  for (const { name, type, definition } of variables) {
    if (type !== 'query') continue;
    const [, metric = '', label = ''] = /^label_values\((.+), (\w+)\)$/.exec(String(definition)) ?? [];
    const match = metric.replaceAll('$job', found.job ?? '');
    const parameters = new URLSearchParams({ 'match[]': match });
    const answer = await fetch(`${prometheus.url}/api/v1/label/${label}/values?${parameters}`);
    const { data } = (await answer.json()) as { data: string[] };
    expect(data.length, `${uid}: ${name}`).toBeGreaterThan(0);
    found[name] = data.join('|');
  }
  return found;
}

/** Every query of the panels for these gateways, with its result. */
async function ask(instance?: string) {
  const choices = Object.fromEntries(
    await Promise.all(dashboards.map(async ({ uid }) => [uid, await choicesOf(uid)] as const)),
  );
  return await Promise.all(
    queries.map(async (query) => {
      const expr = asGrafana(query.expr, instance, choices[query.uid] ?? {});
      return { ...query, samples: await prometheus.query(expr) };
    }),
  );
}

type Asked = Awaited<ReturnType<typeof ask>>;

const isNumber = ({ value }: Sample): boolean => Number.isFinite(value);

/** Panels draw no number from these: lines may have gaps, single numbers and states may not. */
const without = (asked: Asked) =>
  asked.filter(({ type, samples }) =>
    type === 'timeseries' ? samples.length === 0 : samples.length === 0 || !samples.every(isNumber),
  );

const nameOf = ({ name, expr }: Asked[number]) => `${name}: ${expr}`;

/** Expects that nothing is wrong in the end: a scrape, or a rule that needs two, may be late on a loaded machine. */
async function expectNoneOf(look: () => Promise<string[]>): Promise<void> {
  const endMs = performance.now() + ASK_AGAIN_MS;
  let wrong = await look();
  while (wrong.length > 0 && performance.now() < endMs) wrong = await look();
  expect(wrong).toEqual([]);
}

/** What not every gateway has: certificates, secret keys that end, alerts. The tests of the alerts have them. */
const CONDITIONAL = /_expires_timestamp_seconds|^ALERTS/;

const SELECTOR = /\b((?:oncegate|nodejs|process|job_\w+:)[\w:]*|up|ALERTS)\b(\{[^}]*\})?/g;

/** The selectors of an expression, each value of a list of values in one of its own. */
function selectorsOf(expr: string): string[] {
  return [...expr.matchAll(SELECTOR)].flatMap(([selector]) => {
    const lists = [...selector.matchAll(/(?<!job|instance|operation|merchant)=~"([^"$]+)"/g)];
    const single = ([list, values = '']: RegExpMatchArray) =>
      values.split('|').map((value) => selector.replace(list, `=~"${value}"`));
    return lists.length === 0 ? [selector] : lists.flatMap(single);
  });
}

describe('the dashboards, in a Prometheus that scrapes gateways under load with faults', () => {
  it('have data for every query of every panel, and every name in a legend, which differ from line to line', async () => {
    await expectNoneOf(async () => {
      const asked = await ask();
      const lines = asked.flatMap(({ uid, title, legendFormat, samples }) =>
        samples.map(({ labels }) => {
          const legend = legendFormat.replace(/\{\{(\w+)\}\}/g, (_, label) => labels[label] ?? `NO ${label}`);
          return `${uid}, ${title}, ${legend}`;
        }),
      );
      return [
        ...[...without(asked), ...asked.filter(({ samples }) => !samples.some(isNumber))].map(nameOf),
        ...lines.filter((line, at) => line.includes('NO ') || lines.indexOf(line) < at),
      ];
    });
  });

  it.each(['busy', 'process', 'quiet'] as const)('have data for one gateway alone: %s', async (which) => {
    await expectNoneOf(async () => without(await ask(instances[which])).map(nameOf));
  });

  it('show nothing, and no 0, when there is no gateway', async () => {
    const asked = await ask('10.0.0.1:8081');
    const shown = asked.filter(({ title, samples }) => samples.length > 0 && !/^Alerts/.test(title));
    expect(shown.map(nameOf)).toEqual([]);
  });

  it('name metrics and values of labels that exist, and so do the rules', async () => {
    const choices = new Map(
      await Promise.all(dashboards.map(async ({ uid }) => [uid, await choicesOf(uid)] as const)),
    );
    const all = [
      ...queries.map(({ uid, expr, name }) => ({ name, own: choices.get(uid), expr })),
      ...dashboards.flatMap(({ annotations }) => annotations.list.map((one) => ({ ...one, own: {} }))),
      ...rules.map(({ alert, record, expr }) => ({ name: alert ?? record, own: {}, expr })),
    ];
    const selectors = new Map(
      all.flatMap(({ name, own = {}, expr }) =>
        selectorsOf(asGrafana(expr, undefined, own)).map((one) => [one, name] as const),
      ),
    );
    expect(selectors.size).toBeGreaterThan(100);
    await expectNoneOf(async () => {
      const missing = await Promise.all(
        [...selectors].map(async ([selector, name]) =>
          CONDITIONAL.test(selector) || (await prometheus.query(`count(${selector})`)).length > 0
            ? []
            : [`${name}: ${selector}`],
        ),
      );
      return missing.flat();
    });
  });

  it('show every metric of the gateway', () => {
    const names = queries.flatMap(({ expr }) => [...expr.matchAll(SELECTOR)].map(([, name = '']) => name));
    const shown = new Set(names.map((name) => name.replace(/_(?:bucket|sum|count)$/, '')));
    const ours = families.filter((family) => family.startsWith('oncegate_'));
    expect(ours.length).toBeGreaterThan(40);
    expect(ours.filter((family) => !shown.has(family))).toEqual([]);
  });

  it('have the numbers of the gateways', async () => {
    const numberIn = (all: Asked, title: string, legend: string): number =>
      all.find((one) => one.uid === 'oncegate-overview' && one.title === title && one.legendFormat === legend)
        ?.samples[0]?.value ?? Number.NaN;
    const alertsIn = (all: Asked) =>
      (all.find(({ title }) => title === 'Alerts')?.samples ?? []).map(({ labels }) => labels.alertname);
    // The request that the gateway failed was the last one: its scrape, and then the rules, may be due, each group of them at a time
    // of its own.
    const asked = await until(async () => {
      const all = await ask();
      const hasFailure = numberIn(all, 'Availability, last hour', 'gateway alone') < 1;
      return hasFailure && alertsIn(all).includes('OncegateInDoubt') ? all : undefined;
    });
    const number = (title: string, legend: string) => numberIn(asked, title, legend);
    expect([number('Gateways', 'up'), number('Gateways', 'down')]).toEqual([3, 0]);
    const available = number('Availability, last hour', 'gateway alone');
    const withResult = number('Availability, last hour', 'with a result');
    expect(withResult).toBeLessThan(available);
    expect(withResult).toBeGreaterThan(0.5);
  });
});
