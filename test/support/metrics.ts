import { expect } from 'vitest';
import { send } from './client.ts';
import { until } from './until.ts';

export type Labels = Readonly<Record<string, string>>;

export interface Sample {
  name: string;
  labels: Labels;
  value: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
/** Prometheus takes these words in any case. */
const NUMBER = /^(?:[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|[-+]?inf)$/i;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)/y;

/** What an admin port showed at one moment. It reads only the lines that a test asks for: many tests ask until a value changes. */
export class Scrape {
  readonly #lines: string[];

  /** @param text in the Prometheus text format */
  constructor(text: string) {
    this.#lines = text.split('\n').filter(Boolean);
  }

  /** @throws for a line in another format */
  get samples(): Sample[] {
    return this.#lines.filter((line) => !line.startsWith('#')).map(sampleOf);
  }

  /** Names as they are declared: without `_bucket`, `_sum` and `_count`. */
  get families(): string[] {
    return this.#lines.flatMap((line) => /^# TYPE (\S+) /.exec(line)?.[1] ?? []);
  }

  #samplesOf(name: string): Sample[] {
    return this.#lines
      .filter((line) => line.startsWith(name) && /^[{ ]/.test(line.slice(name.length)))
      .map(sampleOf);
  }

  /** The sum of a metric's series that have these labels; undefined if there is none. */
  value(name: string, labels: Labels = {}): number | undefined {
    const wanted = Object.entries(labels);
    const found = this.#samplesOf(name).filter(({ labels }) =>
      wanted.every(([label, value]) => labels[label] === value),
    );
    return found.length === 0 ? undefined : found.reduce((sum, { value }) => sum + value, 0);
  }

  /** A metric's values other than 0, by these labels: `{ 'withdraw executed': 2 }`. */
  table(name: string, ...by: string[]): Record<string, number> {
    const table: Record<string, number> = {};
    for (const { labels, value } of this.#samplesOf(name)) {
      if (value === 0) continue;
      const row = by.map((label) => labels[label]).join(' ');
      table[row] = (table[row] ?? 0) + value;
    }
    return table;
  }

  /** Every series of oncegate, as one text each. */
  get series(): string[] {
    return this.samples
      .filter(({ name }) => name.startsWith('oncegate_'))
      .map(({ name, labels }) => `${name} ${JSON.stringify(labels)}`)
      .sort();
  }
}

function sampleOf(line: string): Sample {
  const [, name = '', labels = '', number = ''] = LINE.exec(line) ?? [];
  if (name === '' || !NUMBER.test(number)) throw new Error(`no sample: ${line}`);
  return { name, labels: Object.fromEntries(pairsOf(labels)), value: Number(number) };
}

function* pairsOf(text: string): Generator<[string, string]> {
  for (let at = 0; at < text.length; at = LABEL.lastIndex) {
    LABEL.lastIndex = at;
    const [, label = '', value = ''] = LABEL.exec(text) ?? [];
    if (label === '') throw new Error(`no labels: ${text}`);
    yield [label, value.replace(/\\(.)/g, (_, char: string) => (char === 'n' ? '\n' : char))];
  }
}

export async function scrape(adminUrl: string, token?: string): Promise<Scrape> {
  const headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
  const { status, body } = await send(adminUrl, { path: '/metrics', headers });
  expect(status).toBe(200);
  return new Scrape(body.toString());
}

/** The sum of a metric's series that have these labels, as the admin port shows it. */
export async function metric(
  adminUrl: string,
  name: string,
  labels: Labels = {},
  token?: string,
): Promise<number> {
  return (await scrape(adminUrl, token)).value(name, labels) ?? 0;
}

/** Resolves when all requests have been counted, which is shortly after their answers were read. */
export async function idle(adminUrl: string): Promise<Scrape> {
  return await until(async () => {
    const shown = await scrape(adminUrl);
    return shown.value('oncegate_in_flight') === 0 ? shown : undefined;
  });
}
