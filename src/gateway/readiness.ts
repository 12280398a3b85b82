import type { Check } from '../admin/source.ts';
import { reachable } from '../backend/lookup.ts';
import type { Config } from '../config/schema.ts';
import { type KeySource, keyWarnings } from '../keys/key-source.ts';
import type { Store } from '../ledger/ledger.ts';
import type { Clock } from '../lib/clock.ts';
import { isSafe } from '../requests/target.ts';
import type { StoreHealth } from '../store/types.ts';
import type { WarnedAbout } from '../telemetry/label-values.ts';
import type { Certificates } from './certificates.ts';
import type { Parts } from './open.ts';

/**
 * How often /readyz asks the store and the backend at most, in a second. It needs no token, so a flood of requests for it must
 * not become a flood of writes and of connections to the backend.
 */
const MOST_ASKED = 10;
const A_SECOND_MS = 1000;

/** Warnings for the operator, by what they are about. */
export type Warnings = Record<Exclude<WarnedAbout, 'configuration'>, readonly string[]>;

/** Younger counts are not renewed, because the check of the store writes a probe record. */
const RENEW_AFTER_MS = 30_000;

type PartsHealth = [store: StoreHealth, backend: Awaited<ReturnType<typeof reachable>>];

/** Whether a gateway is ready, and what its operator should know. */
export class Readiness {
  /** The configuration in force. */
  config: Config;
  /** The file of the configuration, if it is followed. */
  configFile: { readonly warnings: readonly string[] } | undefined;
  readonly #parts: Parts;
  readonly #clock: Clock;
  /** The last times that /readyz asked the store and the backend, at most {@link MOST_ASKED}. */
  #asked: { atMs: number; answers: Promise<PartsHealth> }[] = [];
  #countedAtMs = Number.NEGATIVE_INFINITY;

  constructor(config: Config, parts: Parts, clock: Clock) {
    this.config = config;
    this.#parts = parts;
    this.#clock = clock;
    // A gateway that nobody watches counts nothing. The next reading has the new counts.
    parts.metrics.beforeReading(() => {
      parts.metrics.configWarnings.set({ about: 'configuration' }, this.configFile?.warnings.length ?? 0);
      if (clock.monotonicMs() - this.#countedAtMs < RENEW_AFTER_MS) return;
      this.#countedAtMs = clock.monotonicMs();
      // If the checks fail, the counts stay.
      this.warnings().catch(() => {});
    });
  }

  /** The checks that /readyz shows. The gateway is ready if all are ok. */
  async checks(): Promise<Check[]> {
    const { keys, certificates, lifecycle, observation } = this.#parts;
    const [stored, upstream] = await this.#ask();
    const watched = this.#parts.watch?.healthOf(stored) ?? stored;
    const found = observation ? notNeeded(watched) : watched;
    this.#count({ store: found.warnings });
    const warnings = policyWarnings(this.config);
    const policies: Check = { name: 'operations', ok: true, detail: 'declared', warnings };
    // Always ok: the old certificate stays in use.
    const certified: Check = {
      name: 'certificates',
      ok: true,
      detail: 'loaded',
      warnings: certificates.warnings(),
    };
    const file: Check = {
      name: 'configuration',
      ok: true,
      detail: 'the file differs from the configuration in force',
      warnings: [...(this.configFile?.warnings ?? [])],
    };
    const { draining } = lifecycle;
    const held = keys.health();
    return [
      { name: 'store', ok: found.ok, detail: found.detail, warnings: found.warnings },
      { name: 'upstream', ...upstream },
      { name: 'keys', ok: true, detail: held.detail, ...(held.warning && { warnings: [held.warning] }) },
      ...(certificates.count > 0 ? [certified] : []),
      ...(warnings.length > 0 ? [policies] : []),
      { name: 'draining', ok: !draining, detail: draining ? 'shutting down' : 'serving' },
      ...(file.warnings?.length ? [file] : []),
    ];
  }

  /** What the store and the backend say now, or said within the last second if they were asked too often since then. */
  #ask(): Promise<PartsHealth> {
    const nowMs = this.#clock.monotonicMs();
    const [first] = this.#asked;
    const last = this.#asked.at(-1);
    if (last && first && this.#asked.length === MOST_ASKED && nowMs - first.atMs < A_SECOND_MS)
      return last.answers;
    const { store, upstreamTls } = this.#parts;
    const { url, connectTimeoutMs } = this.config.upstream;
    const answers = Promise.all([store.health(), reachable(url, connectTimeoutMs, upstreamTls)]);
    this.#asked = [...this.#asked.slice(1 - MOST_ASKED), { atMs: nowMs, answers }];
    return answers;
  }

  /** Warnings for the operator at start, one line each. */
  async warnings(): Promise<string[]> {
    const watched = (this.#parts.watch?.atStart ?? []).map((warning) => `store: ${warning}`);
    const found = await findWarnings(this.config, this.#parts, this.#clock.wallMs());
    this.#count(this.#withWatched(found));
    return [...watched, ...linesOf(found)];
  }

  #withWatched({ store, ...others }: Warnings): Warnings {
    return { ...others, store: [...store, ...(this.#parts.watch?.warnings ?? [])] };
  }

  /** The {@link warnings}, and those that ask the backend about a secret key. For `oncegate check`. */
  async checkWarnings(): Promise<string[]> {
    const asked = (await this.#parts.keys.askWarnings?.()) ?? [];
    return [...(await this.warnings()), ...asked.map((text) => `keys: ${text}`)];
  }

  /** Fills `oncegate_config_warnings`. Kinds that are left out keep their counts. */
  #count(found: Partial<Warnings>): void {
    for (const [about, warnings] of Object.entries(found))
      this.#parts.metrics.configWarnings.set({ about }, warnings.length);
  }
}

/**
 * Under `mode: observe` a gateway whose store fails serves every request. Taking it out of service would harm merchants. A store
 * that a copy has closed is different: other gateways serve, and this one would send what they have executed.
 */
function notNeeded(health: StoreHealth): StoreHealth {
  const { ok, isClosed, detail, warnings } = health;
  if (ok || isClosed) return health;
  return {
    ok: true,
    detail,
    warnings: [...warnings, 'the store does not work: nothing is observed meanwhile'],
  };
}

interface Warned {
  store?: Store;
  keys?: KeySource | undefined;
  certificates: Certificates;
}

/** Warnings for the operator at start. They contain ids of secret keys, so /readyz does not show them. */
export async function findWarnings(
  config: Policies,
  { store, keys, certificates }: Warned,
  nowMs: number,
): Promise<Warnings> {
  const names = config.operations.map(({ name }) => name);
  const entries = keys?.entries();
  const { warning } = keys?.health() ?? {};
  return {
    store: (await store?.health())?.warnings ?? [],
    operations: policyWarnings(config),
    keys: [...(warning ? [warning] : []), ...(entries ? keyWarnings(entries, names, nowMs) : [])],
    certificates: certificates.warnings(),
  };
}

/** One line for each warning. */
export const linesOf = (found: Warnings): string[] =>
  Object.entries(found).flatMap(([about, texts]) => texts.map((text) => `${about}: ${text}`));

/** With these a proxy says that it got no answer. */
const NO_ANSWER = [502, 503, 504];

/** Whether a lookup with this answer has failed: its credential was refused, there were too many of them, or the backend does not work. */
const isFailedLookup = (status: number): boolean =>
  [401, 403, 407, 408, 429].includes(status) || status >= 500;

type Policies = Pick<Config, 'operations' | 'idempotency' | 'upstream'>;

/** Warnings about dangerous policies, one line each. */
export function policyWarnings({ operations, idempotency, upstream }: Policies): string[] {
  const { mode, undeclared } = idempotency;
  const warnings: string[] = [];
  if (upstream.endOfConnection === 'trusted')
    warnings.push(
      'upstream.endOfConnection is trusted: a response without a length that was cut is stored as the result',
    );
  if (mode === 'observe')
    warnings.push(
      'idempotency.mode is observe: nothing is protected; every request is sent to the backend, and a duplicate pays twice',
    );
  for (const { name, match, idempotency } of operations) {
    if (idempotency.inDoubt === 'retry')
      warnings.push(
        `${name} has inDoubt: retry: a request that may have been executed is sent again; it pays twice, unless the backend itself executes each key once`,
      );
    if (idempotency.key === 'none' && !match.methods.every(isSafe))
      warnings.push(
        `${name} has key: none: a key does not protect its requests, and a retry is executed again`,
      );
    const { release, unknown } = idempotency;
    const final = NO_ANSWER.filter((status) => !release.includes(status) && !unknown.includes(status));
    if (idempotency.key !== 'none' && final.length > 0)
      warnings.push(
        `${name} has an unknown without ${final.join(', ')}: a proxy answers so when it does not know whether the backend paid, and that becomes the result`,
      );
    const failed = idempotency.lookup?.released.filter(isFailedLookup) ?? [];
    if (failed.length > 0)
      warnings.push(
        `${name} has ${failed.join(', ')} in lookup.released: a lookup that fails so says nothing about the transaction, and its key is released and can be paid again`,
      );
  }
  if (undeclared === 'pass')
    warnings.push(
      'idempotency.undeclared is pass: a key does not protect requests that no operation declares',
    );
  return warnings;
}
