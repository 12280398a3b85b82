import { setTimeout as sleep } from 'node:timers/promises';
import { parse } from 'yaml';
import type { Sandbox } from '../../../../src/sandbox/sandbox.ts';
import { type Prometheus, startPrometheus } from '../../../support/prometheus.ts';
import { until } from '../../../support/until.ts';
import { readText, rules } from '../support/artifacts.ts';

/**
 * The times of the rules, and those of this test. Windows keep their order. A new time in the rules needs a line here. The
 * shortest window has eight scrapes, because some are late on a busy machine.
 */
const WINDOWS: Record<string, string> = {
  ...{ '5m': '8s', '15m': '8s', '30m': '9s', '1h': '9s' },
  ...{ '2h': '10s', '6h': '11s', '1d': '12s', '3d': '13s' },
};
const FOR = '1s';
/** Also the time that a scrape may take. */
const SCRAPE_EVERY_MS = 1000;
/** An alert needs a window and a `for`, on a machine that is busy with other tests. */
export const WITHIN_MS = 120_000;
const LOOK_EVERY_MS = 200;

/**
 * The rules of the product, with shorter times: `[5m]` becomes `[3s]`, and each `for:` and `keep_firing_for:` a second.
 *
 * @param thresholds numbers of single alerts that a test cannot reach, by the text in the rule. Each has to be in the rules
 */
export function shortened(thresholds: Record<string, string> = {}): string {
  let text = readText('config/prometheus.rules.yaml')
    .replace(/\[(\d+[a-z]+)\]/g, (_, window: string) => {
      const short = WINDOWS[window];
      if (!short) throw new Error(`no short window for ${window}`);
      return `[${short}]`;
    })
    .replace(/^( +(?:keep_firing_)?for:) \w+$/gm, `$1 ${FOR}`);
  for (const [long, short] of Object.entries(thresholds)) {
    if (!text.includes(long)) throw new Error(`no rule has ${long}`);
    text = text.replaceAll(long, short);
  }
  const left = parse(text).groups.flatMap(({ rules: of }: { rules: { for?: string }[] }) =>
    of.filter((rule) => rule.for !== undefined && rule.for !== FOR),
  );
  if (left.length > 0) throw new Error(`a rule has another form of for: ${JSON.stringify(left[0])}`);
  return text;
}

/** Every alert of the product. */
export const ALERTS = rules.flatMap(({ alert }) => alert ?? []);

/** Alerts that were seen firing and then clearing. */
export const provoked = new Set<string>();

/** An admin port. */
export interface Scraped {
  adminUrl: string;
}

const hostOf = ({ adminUrl }: Scraped): string => new URL(adminUrl).host;

/** A Prometheus with the rules, for several tests. */
export interface Shared {
  prometheus: Prometheus;
  targets: Set<string>;
}

export async function share(thresholds?: Record<string, string>): Promise<Shared> {
  const options = { targets: [], rules: [shortened(thresholds)], everyMs: SCRAPE_EVERY_MS };
  return { prometheus: await startPrometheus(options), targets: new Set() };
}

/** The gateways of one test, and the alerts that Prometheus reports. */
export class Watch {
  readonly prometheus: Prometheus;
  readonly #targets: Set<string>;
  readonly #own = new Set<string>();
  readonly #firing = new Set<string>();

  constructor({ prometheus, targets }: Shared) {
    this.prometheus = prometheus;
    this.#targets = targets;
  }

  /** Scrapes these too. Resolves when each of them was scraped: Prometheus sees only events after its first look at a counter. */
  async add(...gateways: Scraped[]): Promise<void> {
    const hosts = gateways.map(hostOf);
    for (const host of hosts) {
      this.#own.add(host);
      this.#targets.add(host);
    }
    this.prometheus.setTargets([...this.#targets]);
    await until(async () => {
      await sleep(LOOK_EVERY_MS);
      const up = (await this.prometheus.query('up == 1')).map(({ labels }) => labels.instance ?? '');
      return hosts.every((host) => up.includes(host));
    }, WITHIN_MS);
  }

  /** Scrapes these no more. */
  remove(...gateways: Scraped[]): void {
    this.#remove(gateways.map(hostOf));
  }

  /** Scrapes none of this test's gateways any more: they end, which is no alert of another test. */
  close(): void {
    this.#remove([...this.#own]);
  }

  #remove(hosts: string[]): void {
    for (const host of hosts) this.#targets.delete(host);
    this.prometheus.setTargets([...this.#targets]);
  }

  /** Resolves when all of these fire. */
  async fire(...alerts: string[]): Promise<void> {
    for (const alert of alerts) {
      await this.#until(`${alert} did not fire`, (firing) => firing.has(alert));
      this.#firing.add(alert);
    }
  }

  /** Resolves when none of these fires or is pending. They have to have fired before. */
  async clear(...alerts: string[]): Promise<void> {
    for (const alert of alerts) {
      if (!this.#firing.has(alert)) throw new Error(`${alert} was not seen firing`);
      await this.#until(`${alert} did not clear`, (_firing, active) => !active.has(alert));
      provoked.add(alert);
    }
  }

  /** Which alerts fire now. */
  async firing(): Promise<string[]> {
    const alerts = await this.prometheus.alerts();
    return alerts.filter(({ state }) => state === 'firing').map(({ labels }) => labels.alertname ?? '');
  }

  async #until(
    otherwise: string,
    isSo: (firing: ReadonlySet<string>, active: ReadonlySet<string>) => boolean,
  ): Promise<void> {
    let active: { name: string; state: string }[] = [];
    const look = async () => {
      await sleep(LOOK_EVERY_MS);
      active = (await this.prometheus.alerts()).map(({ labels, state }) => ({
        name: labels.alertname ?? '',
        state,
      }));
      const firing = active.filter(({ state }) => state === 'firing').map(({ name }) => name);
      return isSo(new Set(firing), new Set(active.map(({ name }) => name)));
    };
    await until(look, WITHIN_MS).catch(() => {
      throw new Error(`${otherwise}; active: ${JSON.stringify(active)}`);
    });
  }
}

/** The fault of a payout that its backend holds back until the test ends the delay. */
export const HELD = 'delay=200000';
/** Longer than the backend holds a payout back. */
export const PATIENT = { responseTimeoutMs: 300_000 };

/**
 * Pays until the backend has the request. A payout that a busy machine did not send is repeated, as merchants do.
 *
 * @returns the answer of the one that was sent, which may still be under way
 */
export async function executing<T>(
  { requests }: Pick<Sandbox, 'requests'>,
  key: string,
  pay: () => Promise<T>,
): Promise<{ answer: Promise<T> }> {
  return await until(async () => {
    const answer = pay();
    let isAnswered = false;
    const answered = () => {
      isAnswered = true;
    };
    answer.then(answered, answered);
    await until(() => requests.ofKey(key) > 0 || isAnswered, WITHIN_MS);
    return requests.ofKey(key) > 0 ? { answer } : undefined;
  }, WITHIN_MS);
}

/** Begins `action` every `everyMs`, without waiting for it, until it is stopped. Failures of the action do not matter. */
export function keepOn(everyMs: number, action: (times: number) => Promise<unknown>): () => Promise<void> {
  const running = new Set<Promise<unknown>>();
  let times = 0;
  const timer = setInterval(() => {
    const one = action(times++)
      .catch(() => {})
      .finally(() => running.delete(one));
    running.add(one);
  }, everyMs);
  return async () => {
    clearInterval(timer);
    await Promise.all(running);
  };
}
