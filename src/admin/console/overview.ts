import type { Clock } from '../../kernel/clock.ts';
import type { AdminSource, AdminTools, Check } from '../application.ts';
import type { DoubtsSummary, Overview, Part, PartState } from './contract.ts';

/** Each reading of the checks writes a probe record and connects to the backend, so several viewers share one. */
const SHARED_MS = 2000;

/** How late a count of the keys in doubt may be before the overview says so. */
const COUNT_LATE_MS = 15_000;

/** A part of the gateway, for people. `meaning` says what its state means for merchants. */
type Words = { title: string; meaning: Record<PartState, string> };

const WORDS: Record<Check['name'], Words> = {
  store: {
    title: 'Store',
    meaning: {
      ok: 'Payouts with an idempotency key are executed once, and retries get the stored result.',
      warning:
        'Payouts are executed, but a setting or an event may cost records: then a retry could pay again.',
      failing: 'New payouts with an idempotency key are refused with 503 and not sent. Merchants can retry.',
    },
  },
  upstream: {
    title: 'Backend',
    meaning: {
      ok: 'Requests can be sent.',
      warning: 'Requests can be sent.',
      failing: 'New requests are answered 502 and not executed. Stored results are still replayed.',
    },
  },
  keys: {
    title: 'Secret keys',
    meaning: {
      ok: 'Merchants can authenticate.',
      warning: 'Merchants can authenticate.',
      failing: 'Merchants whose secret keys are not known are refused with 401 or 503.',
    },
  },
  certificates: {
    title: 'Certificates',
    meaning: {
      ok: 'Connections with TLS work.',
      warning: 'Connections with TLS work with the certificate in use. Replace it before it expires.',
      failing: 'Merchants cannot connect.',
    },
  },
  operations: {
    title: 'Policies of operations',
    meaning: {
      ok: 'A key in doubt is never sent again by the gateway itself.',
      warning:
        'An operation has a policy that can pay twice if the backend does not keep what the policy assumes.',
      failing: 'Operations do not work.',
    },
  },
  configuration: {
    title: 'Configuration file',
    meaning: {
      ok: 'The file is in force.',
      warning: 'The configuration in force is not the file. Merchants are served under the one in force.',
      failing: 'The configuration does not work.',
    },
  },
  workers: {
    title: 'Worker processes',
    meaning: {
      ok: 'All processes serve merchants.',
      warning: 'Processes serve merchants, but not all under the newest configuration.',
      failing: 'Some processes do not answer. Merchants on their connections wait, the others are served.',
    },
  },
  draining: {
    title: 'Service',
    meaning: {
      ok: 'The gateway accepts requests.',
      warning: 'The gateway accepts requests.',
      failing: 'The gateway is shutting down. Running requests end, later ones are answered 503.',
    },
  },
};

const partOf = ({ name, ok, detail, warnings = [] }: Check): Part => {
  const state = ok ? (warnings.length > 0 ? 'warning' : 'ok') : 'failing';
  const { title, meaning } = WORDS[name];
  return { name, title, state, detail, meaning: meaning[state], warnings };
};

/** Reads the state of each part, and says in a sentence how merchants are served. */
export class OverviewReader {
  readonly #source: Pick<AdminSource, 'checks'>;
  readonly #clock: Clock;
  readonly #about: AdminTools['about'];
  readonly #countEveryMs: number;
  readonly #startedMs: number;
  #shared: { atMs: number; checks: Promise<Check[]> } | undefined;

  constructor(
    source: Pick<AdminSource, 'checks'>,
    { clock, about, countDoubtsEveryMs }: Pick<AdminTools, 'clock' | 'about' | 'countDoubtsEveryMs'>,
  ) {
    this.#source = source;
    this.#clock = clock;
    this.#about = about;
    this.#countEveryMs = countDoubtsEveryMs;
    this.#startedMs = clock.monotonicMs();
  }

  async read(doubts: DoubtsSummary): Promise<Overview> {
    const parts = (await this.checks()).map(partOf);
    const uptimeMs = Math.round(this.#clock.monotonicMs() - this.#startedMs);
    const wallMs = this.#clock.wallMs();
    const { build, workers, mode, store } = this.#about;
    const countAgeMs = doubts.countedAt === null ? uptimeMs : wallMs - Date.parse(doubts.countedAt);
    const isCounted = countAgeMs <= 2 * this.#countEveryMs + COUNT_LATE_MS;
    return {
      nowAt: new Date(wallMs).toISOString(),
      ...stateOf(parts, doubts, { mode, isCounted }),
      ...{ parts, doubts, build },
      startedAt: new Date(wallMs - uptimeMs).toISOString(),
      ...{ uptimeMs, workers, mode, store },
    };
  }

  /** As /readyz, at most two seconds old. */
  checks(): Promise<Check[]> {
    const nowMs = this.#clock.monotonicMs();
    if (this.#shared && nowMs - this.#shared.atMs < SHARED_MS) return this.#shared.checks;
    const checks = this.#source.checks();
    this.#shared = { atMs: nowMs, checks };
    return checks;
  }
}

function stateOf(
  parts: readonly Part[],
  { keys, oldestMs }: DoubtsSummary,
  { mode, isCounted }: { mode: Overview['mode']; isCounted: boolean },
): Pick<Overview, 'state' | 'summary'> {
  const failing = parts.find(({ state }) => state === 'failing');
  if (failing) return { state: 'failing', summary: `${failing.title}: ${failing.meaning}` };
  if (mode === 'observe')
    return {
      state: 'warning',
      summary: 'The gateway only observes: every request is sent to the backend, duplicates included.',
    };
  if (keys !== null && keys > 0)
    return {
      state: 'warning',
      summary: `Merchants are served. ${keys} ${keys === 1 ? 'key is' : 'keys are'} in doubt, the oldest for ${inWords(oldestMs ?? 0)}: somebody must look into the backend’s books.`,
    };
  if (!isCounted)
    return {
      state: 'warning',
      summary:
        'Merchants are served. How many keys are in doubt is not known: they could not be counted of late.',
    };
  const warned = parts.find(({ state }) => state === 'warning');
  if (warned)
    return { state: 'warning', summary: `Merchants are served. ${warned.title}: ${warned.meaning}` };
  return { state: 'ok', summary: 'Merchants are served.' };
}

function inWords(ms: number): string {
  const units: [ms: number, unit: string][] = [
    [86_400_000, 'day'],
    [3_600_000, 'hour'],
    [60_000, 'minute'],
    [1000, 'second'],
  ];
  for (const [unitMs, unit] of units) {
    const count = Math.floor(ms / unitMs);
    if (count >= 1) return `${count} ${unit}${count === 1 ? '' : 's'}`;
  }
  return 'less than a second';
}
