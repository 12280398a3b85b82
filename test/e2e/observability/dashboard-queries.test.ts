import { readFileSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { withdraw } from '../../support/client.ts';
import { type Prometheus, type Sample, startPrometheus } from '../../support/prometheus.ts';
import { startRedis } from '../../support/redis-server.ts';
import { type SpawnedGateway, spawnGateway } from '../../support/spawn.ts';
import { openGateway, openStack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { dashboards, legendLabels, queries, RULES_FILE } from './support/artifacts.ts';
import { busyTraffic, sections } from './support/traffic.ts';

/** What Prometheus scrapes, by what it is. */
interface Gateways {
  /** With Redis, which dies in the end. */
  busy: string;
  /** On the same Redis, without any request. */
  twin: string;
  /** With SQLite and two workers. */
  workers: string;
  /** With SQLite, without any request. */
  quiet: string;
}

const ASK_AGAIN_MS = 15_000;

let instances: Gateways;
let prometheus: Prometheus;
const closing: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  const redis = await startRedis();
  const [busy, quiet] = await Promise.all([
    openStack({
      ...onRedis(redis),
      ...sections,
      metrics: { merchants: ['M-ALPHA'] },
      idempotency: { ...sections.idempotency, countDoubtsEveryMs: 200 },
    }),
    openStack(),
  ]);
  const [twin, workers] = await Promise.all([
    openGateway(busy.config),
    spawnGateway({ ...quiet.config, upstream: { url: quiet.sandbox.url }, workers: 2 }),
  ]);
  closing.push(() => workers.end(), twin.shutdown, busy.close, quiet.close);
  const host = ({ adminUrl }: { adminUrl: string }) => new URL(adminUrl).host;
  instances = { busy: host(busy), twin: host(twin), workers: host(workers), quiet: host(quiet) };
  const rules = readFileSync(RULES_FILE, 'utf8');
  prometheus = await startPrometheus({ targets: Object.values(instances), rules: [rules], everyMs: 1000 });
  closing.push(() => prometheus.stop());
  await until(async () => (await prometheus.query('up == 1')).length === Object.keys(instances).length);

  await Promise.all([busyTraffic(busy), load(workers.url), changeConfiguration(workers)]);
  // The gateways on that Redis show its keys in doubt before it dies.
  const inDoubt = (instance: string) => `sum(oncegate_keys_in_doubt{instance="${instance}"})`;
  const came = `sum(oncegate_in_doubt_total{instance="${instances.busy}"})`;
  for (const instance of [instances.busy, instances.twin])
    await until(async () => (await prometheus.query(`${inDoubt(instance)} == ${came} > 0`)).length === 1);
  await redis.kill();
  await withdraw(busy.url, { key: 'no-store' });
}, 60_000);

afterAll(async () => {
  for (const close of closing) await close();
});

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

/** As Grafana does it: several chosen values become alternatives of a regular expression. */
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

/** Asks again while a scrape is missing: the machine may be loaded. Returns the last answers. */
async function askUntil(isRight: (asked: Asked) => boolean, instance?: string): Promise<Asked> {
  const endMs = performance.now() + ASK_AGAIN_MS;
  for (;;) {
    const asked = await ask(instance);
    if (isRight(asked) || performance.now() > endMs) return asked;
  }
}

describe('the dashboards, in a Prometheus that scrapes gateways under load with faults', () => {
  it('have data for every query of every panel, and every name in a legend', async () => {
    const withoutNumber = (asked: Asked) => asked.filter(({ samples }) => !samples.some(isNumber));
    const asked = await askUntil((all) => without(all).length === 0 && withoutNumber(all).length === 0);
    expect(without(asked).map(nameOf)).toEqual([]);
    expect(withoutNumber(asked).map(nameOf)).toEqual([]);
    for (const { name, samples, legendFormat } of asked)
      for (const label of legendLabels(legendFormat))
        expect(
          samples.every(({ labels }) => label in labels),
          `${name}: ${label}`,
        ).toBe(true);
  });

  it('have different names for the lines of a panel', async () => {
    const named = new Map<string, string[]>();
    for (const { uid, title, legendFormat, samples } of await ask()) {
      const lines = samples.map(({ labels }) =>
        legendFormat.replace(/\{\{(\w+)\}\}/g, (_, label) => labels[label] ?? ''),
      );
      named.set(`${uid}, ${title}`, [...(named.get(`${uid}, ${title}`) ?? []), ...lines]);
    }
    for (const [panel, lines] of named) expect(new Set(lines).size, `${panel}: ${lines}`).toBe(lines.length);
  });

  it('mark alerts, new versions and changed configurations', async () => {
    for (const { uid, annotations } of dashboards)
      for (const { name, expr } of annotations.list) {
        const filled = asGrafana(expr, undefined, {});
        await until(async () => (await prometheus.query(filled)).length > 0).catch(() => {
          throw new Error(`${uid}, ${name}: ${filled}`);
        });
      }
  });

  it('show one gateway alone', async () => {
    const { busy, workers } = instances;
    for (const instance of [busy, workers]) {
      const asked = await askUntil((all) => without(all).length === 0, instance);
      expect(without(asked).map(nameOf)).toEqual([]);
    }
  });

  it('have data for a gateway that has served nothing', async () => {
    for (const instance of [instances.quiet, instances.twin]) {
      const asked = await askUntil((all) => without(all).length === 0, instance);
      expect(without(asked).map(nameOf)).toEqual([]);
    }
  });

  it('show nothing, and no 0, when there is no gateway', async () => {
    const asked = await ask('10.0.0.1:8081');
    const shown = asked.filter(({ title, samples }) => samples.length > 0 && !/^Alerts/.test(title));
    expect(shown.map(nameOf)).toEqual([]);
  });

  it('count a key in doubt once, however many gateways show it', async () => {
    const { busy, twin } = instances;
    const [came] = await prometheus.query(`sum(oncegate_in_doubt_total{instance="${busy}"})`);
    expect(came?.value).toBeGreaterThan(1);
    for (const instance of [busy, twin, `${busy}|${twin}`]) {
      const asked = await askUntil((all) => without(all).length === 0, instance);
      const [shown] = asked.find(({ title }) => title === 'Keys in doubt now')?.samples ?? [];
      expect(shown?.value, instance).toBe(came?.value);
    }
  });

  it('have the numbers of the gateways', async () => {
    const numberIn = (asked: Asked, title: string, legend: string): number =>
      asked.find(
        (one) => one.uid === 'oncegate-overview' && one.title === title && one.legendFormat === legend,
      )?.samples[0]?.value ?? Number.NaN;
    const asked = await askUntil((all) => numberIn(all, 'Gateways', 'up') === 4);
    expect(numberIn(asked, 'Gateways', 'up')).toBe(4);
    expect(numberIn(asked, 'Gateways', 'down')).toBe(0);
    const available = numberIn(asked, 'Availability, last hour', 'gateway');
    const withBackend = numberIn(asked, 'Availability, last hour', 'with the backend');
    expect(available).toBeLessThan(1);
    expect(withBackend).toBeLessThan(available);
    expect(withBackend).toBeGreaterThan(0.5);
    expect(numberIn(asked, 'Alerts that fire', 'firing')).toBeGreaterThan(0);
  });
});
