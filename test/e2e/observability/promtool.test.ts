import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { stringify } from 'yaml';
import { temporaryFolder } from '../../support/config.ts';
import { eachRow } from '../../support/each-row.ts';
import { promtool } from '../../support/prometheus.ts';
import {
  annotationLabels,
  dashboards,
  PROMETHEUS_FILE,
  queries,
  RULES_FILE,
  ruleGroups,
  rules,
} from './support/artifacts.ts';

/** A series, and its values every 15 seconds in promtool's notation. A series without `job` or `instance` is of the gateway `a`. */
type Series = Record<string, string>;

interface Case {
  series: Series;
  /**
   * The alerts that fire, by minutes: `OncegateGatewayDown{instance="a"}`. They are of the job `oncegate` if they name none, and of no
   * job with `job=""`.
   */
  firing?: Record<number, string[]>;
  /** What an expression gives at a minute: the value of each series. */
  values?: { expr: string; minute: number; samples: Record<string, number> }[];
}

/** One gateway, and the store that it shows. */
const UP = { up: '1x640', oncegate_build_info: '1x640', 'oncegate_store_info{store="s"}': '1x640' };

function withLabels(series: string, others: string[]): string {
  const [, name, labels = ''] = /^([\w:]+)(?:\{(.*)\})?$/.exec(series) ?? [];
  const missing = others.filter((one) => !new RegExp(`\\b${one.split('=')[0]}=`).test(labels));
  return `${name}{${[labels, ...missing].filter(Boolean).join(',')}}`;
}

const alertsOf = (firing: string[]) =>
  firing.map((text) => {
    const [, name = '', labels = ''] = /^(\w+)(\{.*\})?$/.exec(text) ?? [];
    // The runbook's test compares the severities.
    const severity = rules.find(({ alert }) => alert === name)?.labels?.severity;
    const always = [`alertname="${name}"`, 'alertstate="firing"', `severity="${severity}"`, 'job="oncegate"'];
    return { labels: withLabels(`ALERTS${labels}`, always).replace('job="",', ''), value: 1 };
  });

const ofGateway = (one: string): string =>
  withLabels(one, ['job="oncegate"', ...(one.startsWith('job_') ? [] : ['instance="a"'])]);

/** `oncegate_store_info` of the gateways that have other metrics, and do not show their store. */
function storesOf(series: Series): Series {
  const labelsOf = (one: string) =>
    ofGateway(one)
      .match(/\b(?:job|instance)="[^"]*"/g)
      ?.sort()
      .join(',');
  const shown = Object.keys(series).filter((one) => one.startsWith('oncegate_store_info'));
  const known = new Set(shown.map(labelsOf));
  const others = Object.keys(series).filter(
    (one) => /^oncegate_(?!build_info)/.test(one) && !known.has(labelsOf(one)),
  );
  return Object.fromEntries(
    others.map((one) => [`oncegate_store_info{${labelsOf(one)},store="s"}`, '1x640']),
  );
}

const toPromtool = ([name, { series, firing = {}, values = [] }]: [string, Case]) => ({
  ...{ name, interval: '15s' },
  input_series: Object.entries({ ...storesOf(series), ...series }).map(([one, samples]) => ({
    series: ofGateway(one),
    values: samples,
  })),
  promql_expr_test: [
    ...Object.entries(firing).map(([minute, alerts]) => ({
      ...{ expr: 'ALERTS{alertstate="firing"}', eval_time: `${60 * Number(minute)}s` },
      exp_samples: alertsOf(alerts),
    })),
    ...values.map(({ expr, minute, samples }) => ({
      ...{ expr, eval_time: `${60 * minute}s` },
      exp_samples: Object.entries(samples).map(([labels, value]) => ({ labels, value })),
    })),
  ],
});

/** The complaints of promtool about what the cases expect. The alerts' texts may change, the times at which they fire may not. */
function complaintsAbout(tests: object[], more: object = {}): string {
  const file = join(temporaryFolder(), 'cases.yaml');
  writeFileSync(file, stringify({ ...more, tests }));
  return promtool('test', 'rules', file);
}

const complaintsAboutRules = (cases: Record<string, Case>) =>
  complaintsAbout(Object.entries(cases).map(toPromtool), {
    rule_files: [RULES_FILE],
    evaluation_interval: '30s',
    // Otherwise the order is random, and an alert may read what its rules recorded half a minute before.
    group_eval_order: ruleGroups,
  });

it('the rules and the configuration are valid for Prometheus itself', () => {
  expect(promtool('check', 'rules', '--lint=all', '--lint-fatal', RULES_FILE)).toBe('');
  expect(promtool('check', 'config', PROMETHEUS_FILE)).toBe('');
});

it('no rule adds up several stores under one job', () => {
  const groups = rules.flatMap(({ alert, record, expr }) =>
    [...expr.matchAll(/\bby \(([^)]*)\)/g)].map(([, labels = '']) => ({
      name: alert ?? record,
      labels: labels.split(', '),
    })),
  );
  expect(groups.length).toBeGreaterThan(60);
  const merged = groups.filter(({ labels }) => !labels.includes('store') && !labels.includes('instance'));
  // A job that has lost all its targets.
  expect(new Set(merged.map(({ name }) => name))).toEqual(new Set(['OncegateGatewayDown']));
});

it('rules depend on no name of a job, and show the figure of the short window', () => {
  expect(rules.filter(({ expr }) => /\bjob=/.test(expr)).map(({ alert, record }) => alert ?? record)).toEqual(
    [],
  );
  const minutes = (window: string) =>
    Number.parseInt(window, 10) * { m: 1, h: 60, d: 1440 }[window.slice(-1) as 'm' | 'h' | 'd'];
  const burns = rules.filter(({ alert }) => alert?.includes('Burn'));
  expect(burns.length).toBeGreaterThan(4);
  // A comparison has the value of its left side, and `and` that of its first operand.
  for (const { alert, expr } of burns)
    for (const pair of expr.split(/\bor\b/)) {
      const [first = '', second = ''] = Array.from(pair.matchAll(/ratio_rate(\w+)/g), ([, window]) => window);
      expect(minutes(first), alert).toBeLessThan(minutes(second));
    }
});

const QUIET: Series = {
  ...UP,
  'oncegate_requests_total{operation="withdraw",outcome="executed"}': '0+2000x300',
  'oncegate_requests_total{operation="withdraw",outcome="upstream_unreachable"}': '0+1x300',
  'oncegate_requests_total{operation="withdraw",outcome="overloaded"}': '0+1x300',
  // A flood of invented secret keys.
  'oncegate_requests_total{operation="none",outcome="invalid_key"}': '0+10000x300',
  'oncegate_requests_total{operation="none",outcome="overloaded"}': '0+1000x300',
  'oncegate_key_probes_total{result="overloaded"}': '0+1000x300',
  'oncegate_gateway_duration_seconds_count{operation="withdraw"}': '0+2000x300',
  'oncegate_gateway_duration_seconds_bucket{operation="withdraw",le="0.025"}': '0+1990x300',
  'oncegate_gateway_duration_seconds_count{operation="none"}': '0+2000x300',
  'oncegate_gateway_duration_seconds_bucket{operation="none",le="0.025"}': '0+5x300',
  'oncegate_keys_in_doubt{operation="withdraw"}': '0x300',
  oncegate_oldest_in_doubt_seconds: '0x300',
  oncegate_in_doubt_page_after_seconds: '3600x300',
  // Gateways that do not show the limit.
  'oncegate_oldest_in_doubt_seconds{job="old"}': '999999x300',
  oncegate_doubts_counted_timestamp_seconds: '0+15x300',
  'oncegate_lookups_total{operation="withdraw",result="unknown"}': '0+1x300',
  'oncegate_key_reloads_total{result="ok"}': '0+1x300',
  'oncegate_config_reloads_total{result="ok"}': '0+1x300',
  'oncegate_certificate_reloads_total{certificate="listen",result="ok"}': '0+1x300',
  'oncegate_config_warnings{about="keys"}': '3x300',
  'oncegate_spans_total{result="exported"}': '0+5x300',
  oncegate_upstream_slots: '64x300',
  oncegate_upstream_slots_in_use: '64x300',
  oncegate_upstream_slots_held_long: '4x300',
  oncegate_upstream_slots_queued: '0x300',
  'oncegate_store_duration_seconds_count{command="start",result="ok"}': '0+1000x300',
  'oncegate_store_duration_seconds_count{command="start",result="failed"}': '0+1x300',
  'oncegate_store_duration_seconds_count{command="health",result="failed"}': '0+1000x300',
  'oncegate_upstream_duration_seconds_bucket{operation="withdraw",le="2.5"}': '0+99x300',
  'oncegate_upstream_duration_seconds_bucket{operation="withdraw",le="+Inf"}': '0+100x300',
};

/** Alerts of which one event is enough: the counter, and from when to when they fire after it, in minutes. */
const EVENTS: [alert: string, counter: string, from: number, to: number][] = [
  ['CompleteLate{operation="withdraw",instance="a"}', 'complete_late_total{operation="withdraw"}', 0, 15],
  ['CompleteUnreplicated{instance="a"}', 'complete_unreplicated_total', 0, 15],
  ['ConnectionsRefused{instance="a"}', 'connections_refused_total', 1, 5],
  ['LeaseLost{instance="a"}', 'lease_lost_total', 0, 15],
  [
    'LookupsFail{operation="withdraw",store="s"}',
    'lookups_total{operation="withdraw",result="failed"}',
    0,
    15,
  ],
  ['SpansLost{instance="a"}', 'spans_total{result="failed"}', 10, 15],
  ['StaleWrites{instance="a",write="complete"}', 'stale_total{write="complete"}', 0, 15],
  ['StoreClockStepped{instance="a"}', 'store_clock_steps_total', 0, 60],
  ['UnprotectedPayouts{operation="withdraw",store="s"}', 'unprotected_total{operation="withdraw"}', 0, 60],
  ['UnreadableRecords{reason="damaged",store="s"}', 'unreadable_records_total{reason="damaged"}', 0, 15],
  ['ConfigRefused{instance="a"}', 'config_reloads_total{result="refused"}', 0, 30],
  ['KeyFileRefused{instance="a"}', 'key_reloads_total{result="refused"}', 0, 30],
  ['MerchantsRemoved{instance="a"}', 'key_reloads_total{result="merchants_removed"}', 0, 60],
  ['MerchantChanged{instance="a"}', 'key_probes_total{result="merchant_changed"}', 0, 60],
  [
    'CertificateRefused{instance="a",certificate="listen"}',
    'certificate_reloads_total{certificate="listen",result="refused"}',
    ...([0, 30] as const),
  ],
];

/** The event comes after ten minutes. In other jobs the counter stays as it is, or begins again with a restart. */
const events: Case = {
  series: {
    ...UP,
    ...Object.fromEntries(
      EVENTS.flatMap(([, counter]) => [
        [withLabels(`oncegate_${counter}`, []), '0x40 1x280'],
        [withLabels(`oncegate_${counter}`, ['job="steady"']), '7x320'],
        [withLabels(`oncegate_${counter}`, ['job="restarted"']), '5x40 0x280'],
      ]),
    ),
  },
  firing: Object.fromEntries(
    [9, 12, 14, 17, 22, 28, 38, 42, 68, 72].map((minute) => [
      minute,
      EVENTS.filter(([, , from, to]) => minute > 10 + from && minute < 10 + to).map(
        ([one]) => `Oncegate${one}`,
      ),
    ]),
  ),
};

const beyond = (limit: number, over: number): string => `${limit}x40 ${over}x40 ${limit}x40`;

/**
 * Alerts with a limit: series that are at the limit for ten minutes, beyond it for ten, and at the limit again; and from when to
 * when the alerts fire, in minutes after the limit was passed.
 */
const LIMITS: [alert: string, series: Series, from: number, to?: number][] = [
  ['GatewayDown{instance="b"}', { 'up{instance="b"}': beyond(1, 0), 'up{job="another"}': '0x120' }, 1],
  ['WritesPending{instance="a"}', { oncegate_pending_writes: beyond(0, 1) }, 1],
  ['StoreRefusesWrites{instance="a"}', { oncegate_store_refuses_writes: beyond(0, 1) }, 1],
  ['StoreForgot{instance="a"}', { oncegate_store_forgot: beyond(0, 1) }, 0],
  ['StoreUnsafe{instance="a"}', { 'oncegate_config_warnings{about="store"}': beyond(0, 1) }, 1],
  ['DiskSpaceLow{instance="a"}', { oncegate_store_disk_free_bytes: beyond(1_073_741_824, 1_073_741_823) }, 5],
  [
    'DiskAlmostFull{instance="b"}',
    { 'oncegate_store_disk_free_bytes{instance="b"}': beyond(268_435_456, 268_435_455) },
    1,
  ],
  ['DiskSpaceLow{instance="b"}', {}, -5, 20],
  ['WalGrows{instance="a"}', { oncegate_sqlite_wal_bytes: beyond(268_435_456, 268_435_457) }, 5],
  [
    'SlotsFull{instance="a"}',
    {
      oncegate_upstream_slots: '64x120',
      oncegate_upstream_slots_in_use: beyond(63, 64),
      oncegate_upstream_slots_queued: '1x120',
    },
    5,
  ],
  [
    'KeyExpires{store="s"}',
    { oncegate_merchants_expiring: beyond(0, 2), 'oncegate_merchants_expiring{instance="b"}': beyond(0, 2) },
    5,
  ],
  // In ten minutes the limits of these are reached: a day, three days and three weeks before the end.
  ['KeyExpired{store="s"}', { oncegate_secret_key_expires_timestamp_seconds: '87000x80 50000000x40' }, 1],
  [
    'CertificateExpired{instance="a",certificate="upstream"}',
    {
      'oncegate_certificate_expires_timestamp_seconds{certificate="upstream"}': '259800x80 50000000x40',
    },
    1,
  ],
  ['CertificateExpires{instance="a",certificate="upstream"}', {}, -5],
  [
    'CertificateExpires{instance="a",certificate="listen"}',
    { 'oncegate_certificate_expires_timestamp_seconds{certificate="listen"}': '1815000x80 50000000x40' },
    5,
  ],
  // Long ago.
  [
    'CertificateExpired{instance="b",certificate="store"}',
    {
      'oncegate_certificate_expires_timestamp_seconds{instance="b",certificate="store"}': '60x120',
      'oncegate_secret_key_expires_timestamp_seconds{job="past"}': '60x120',
    },
    ...([-9, 20] as const),
  ],
  ['CertificateExpires{instance="b",certificate="store"}', {}, -5, 20],
  ['KeyExpired{job="past",store="s"}', {}, -9, 20],
  // Counted at five minutes, and again after twenty; never; and a gateway that is gone.
  [
    'DoubtsNotCounted{instance="a"}',
    {
      oncegate_doubts_counted_timestamp_seconds: '300x80 1200+15x40',
      'oncegate_doubts_counted_timestamp_seconds{instance="b"}': '0x120',
      'oncegate_doubts_counted_timestamp_seconds{instance="c"}': '0x20 stale',
    },
    2,
  ],
  ['DoubtsNotCounted{instance="b"}', {}, -3, 20],
  // The smaller limit of two gateways, which have the same keys.
  [
    'InDoubtOld{store="s"}',
    {
      'oncegate_store_info{instance="b",store="s"}': '1x120',
      oncegate_oldest_in_doubt_seconds: beyond(1800, 1801),
      'oncegate_oldest_in_doubt_seconds{instance="b"}': beyond(1800, 1801),
      oncegate_in_doubt_page_after_seconds: '3600x120',
      'oncegate_in_doubt_page_after_seconds{instance="b"}': '1800x120',
    },
    ...([0, 12.5] as const),
  ],
];

const limits: Case = {
  series: { ...UP, ...Object.fromEntries(LIMITS.flatMap(([, series]) => Object.entries(series))) },
  firing: Object.fromEntries(
    [9, 10, 11, 12, 13, 15, 16, 19.5, 22, 24].map((minute) => [
      minute,
      LIMITS.filter(([, , from, to = 10.5]) => minute > 10 + from && minute < 10 + to).map(
        ([one]) => `Oncegate${one}`,
      ),
    ]),
  ),
};

/** Pairs of windows, and how fast an objective's budget burns at most in both of them. */
const WINDOWS = [
  ['1h', '5m', 14.4, 'Fast'],
  ['6h', '30m', 6, 'Fast'],
  ['1d', '2h', 3, 'Slowly'],
  ['3d', '6h', 1, 'Slowly'],
] as const;
const BUDGETS = { Availability: 0.001, Latency: 0.01, Results: 0.01 };
/** Shares of the limit in the long and in the short window, and failures. */
const BURNS: [kind: string, long: number, short: number, failures: number][] = [
  ['beyond', 1.01, 1.01, 10],
  ['below', 0.99, 0.99, 10],
  ['few', 1.01, 1.01, 9],
  ['over', 1.01, 0.5, 10],
  ['new', 0.5, 1.01, 10],
];

/** The recorded series themselves. */
const burnRates: Case = { series: { ...UP }, firing: { 1: [] } };
for (const [name, budget] of Object.entries(BUDGETS))
  for (const [long, short, factor, how] of WINDOWS) {
    const objective = name.toLowerCase();
    // The backend's owners have objectives of their own.
    if (objective === 'results' && how === 'Slowly') continue;
    for (const [kind, ofLong, ofShort, failures] of BURNS) {
      const record = (of: string) =>
        `job_store_objective:oncegate_objective_failures:${of}{job="${kind}-${long}",store="s",objective="${objective}"}`;
      burnRates.series[record(`ratio_rate${long}`)] = `${ofLong * factor * budget}x8`;
      burnRates.series[record(`ratio_rate${short}`)] = `${ofShort * factor * budget}x8`;
      burnRates.series[record(`increase${long}`)] = `${failures}x8`;
    }
    const labels = `job="beyond-${long}",store="s",objective="${objective}"`;
    burnRates.firing?.[1]?.push(
      `Oncegate${name}${objective === 'results' ? 'Burn' : 'Burns'}${how}{${labels}}`,
    );
  }

const burning = (objective: string, job: string, ...how: string[]) =>
  how.map(
    (one) => `Oncegate${objective}Burns${one}{job="${job}",store="s",objective="${objective.toLowerCase()}"}`,
  );
const requests = (labels: string) => `oncegate_requests_total{operation="withdraw",${labels}}`;
const quick = (job: string, operation = 'withdraw') =>
  `oncegate_gateway_duration_seconds_bucket{job="${job}",operation="${operation}",le="0.025"}`;
const measured = (job: string, operation = 'withdraw') =>
  `oncegate_gateway_duration_seconds_count{job="${job}",operation="${operation}"}`;
const RATIO_5M = 'job_store_objective:oncegate_objective_failures:ratio_rate5m{objective="availability"}';
const IN_DOUBT = ['OncegateInDoubt{operation="withdraw",store="s"}', 'OncegateInDoubtOld{store="s"}'];

const BURNING = burning('Availability', 'oncegate', 'Fast', 'Slowly');
const NO_RESULTS = 'OncegateResultsBurnFast{objective="results",store="s"}';
const responses = (kind: string, operation = 'withdraw') =>
  `oncegate_upstream_responses_total{operation="${operation}",class="${kind}"}`;
const KEYS_REFUSED = ['OncegateKeysRefused{store="s"}', 'OncegateKeysRefused{job="half",store="s"}'];
const HANGS = 'OncegateUpstreamHangs{instance="a"}';
const UNKNOWN = 'OncegateOutcomesUnknown{operation="withdraw",class="unknown",store="s"}';
const refused = (outcome: string, labels = '') =>
  `oncegate_requests_total{${labels}operation="none",outcome="${outcome}"}`;
const OF_OTHER_STORE = [
  'OncegateOutcomesUnknown{operation="withdraw",class="unknown",store="t"}',
  'OncegateResultsBurnFast{objective="results",store="t"}',
  'OncegateKeyExpires{store="t"}',
];
const slow = (labels = '', le = '5') =>
  `oncegate_upstream_duration_seconds_bucket{${labels}operation="withdraw",le="${le}"}`;
const started = (labels = '') => `process_start_time_seconds{${labels}}`;
const EIGHT_TIMES = '1000x40 1015 1030 1045 1060 1075 1090 1105 1120 1120x120';
const OF_BACKEND = [
  ...['OncegateUpstreamUnreachable{instance="a"}', 'OncegateOverloaded{instance="a"}'],
  ...BURNING,
  NO_RESULTS,
];
const FAILING = [...OF_BACKEND, 'OncegateStoreFailing{instance="a"}'];
const OVER_LIMITS = [...FAILING, 'OncegateInFlightFull{instance="a"}'];

const CASES: Record<string, Case> = {
  'a quiet hour, with a flood of invented secret keys': { series: QUIET, firing: { 75: [] } },
  'one event of each kind': events,
  'limits that are reached, passed and kept again': limits,
  'the limits of the burn rates': burnRates,

  'no gateway at all': {
    series: { 'up{job="another"}': '1x60' },
    firing: { 5: ['OncegateGatewayDown{job=""}'] },
  },

  'gateways in jobs of any name: one that never answered, one among other programs, and a job without any target':
    {
      series: {
        ...{ 'up{job="payments"}': '1x80', 'oncegate_build_info{job="payments"}': '1x80' },
        'up{job="payments",instance="new"}': '0x80',
        ...{ 'up{job="pods"}': '1x40 0x40', 'oncegate_build_info{job="pods"}': '1x40 stale' },
        ...{ 'up{job="pods",instance="other"}': '1x80', 'up{job="pods",instance="broken"}': '0x80' },
        ...{ 'up{job="moved"}': '1x40 stale', 'oncegate_build_info{job="moved"}': '1x40 stale' },
      },
      firing: {
        9: ['OncegateGatewayDown{job="payments",instance="new"}'],
        12: [
          'OncegateGatewayDown{job="payments",instance="new"}',
          'OncegateGatewayDown{job="pods",instance="a"}',
          'OncegateGatewayDown{job="moved"}',
        ],
      },
    },

  'eight crashes in two minutes: each scrape finds another process; a gateway that was deployed twice; another program':
    {
      series: {
        ...{ ...UP, [started()]: EIGHT_TIMES },
        ...{
          'oncegate_build_info{instance="b"}': '1x640',
          [started('instance="b"')]: '1000x40 1600x4 1660x120',
        },
        [started('job="another"')]: EIGHT_TIMES,
      },
      firing: {
        10: [],
        12: ['OncegateRestarts{instance="a"}'],
        19: ['OncegateRestarts{instance="a"}'],
        25: [],
      },
    },

  'a total outage: from one minute to the next, nobody knows what becomes of any payout': {
    series: {
      ...UP,
      ...{ [requests('outcome="executed"')]: '0+100x40 4000x120', [responses('2xx')]: '0+100x40 4000x120' },
      [requests('outcome="outcome_unknown"')]: '0x40 100+100x120',
      [responses('unknown')]: '0x40 100+100x120',
      [responses('5xx')]: '0x160',
      // Nothing reaches the backend, which is another alert.
      [responses('not_sent', 'balance')]: '0+100x160',
      // A few at night, although these are all.
      [responses('unknown', 'refund')]: '0x40 1 2 3 4 4x120',
    },
    firing: {
      9: [],
      10.5: [],
      11.5: [UNKNOWN, NO_RESULTS],
      20: [UNKNOWN, NO_RESULTS],
    },
  },

  'the backend of one gateway hangs, with a time limit of five minutes; that of another one is slow': {
    series: {
      ...{ ...UP, 'oncegate_store_info{instance="b",store="s"}': '1x160' },
      ...{ oncegate_upstream_slots_held_long: '0x40 64x80 0x40', [responses('4xx')]: '0x160' },
      [responses('2xx')]: '0+100x40 4000x80 4100+100x40',
      [responses('unknown')]: '0x60 64+64x59 3840x40',
      'oncegate_upstream_slots_held_long{instance="b"}': '64x160',
      'oncegate_upstream_responses_total{instance="b",operation="withdraw",class="2xx"}': '0+4x160',
    },
    firing: {
      ...{ 9: [], 10.5: [], 12: [HANGS], 14: [HANGS], 18: [HANGS, UNKNOWN], 29: [HANGS, UNKNOWN] },
      31: [UNKNOWN],
    },
  },

  'the backend answers every payout with 500, a little more than 5 % of the refunds, and a little less of the rest':
    {
      series: {
        ...{ ...UP, [requests('outcome="executed"')]: '0+100x160' },
        'oncegate_requests_total{operation="refund",outcome="executed"}': '0+1000x160',
        'oncegate_requests_total{operation="other",outcome="executed"}': '0+1000x160',
        ...{ [responses('2xx')]: '0+100x40 4000x120', [responses('5xx')]: '0x40 100+100x120' },
        ...{ [responses('2xx', 'refund')]: '0+948x160', [responses('5xx', 'refund')]: '0+52x160' },
        ...{ [responses('2xx', 'other')]: '0+952x160', [responses('5xx', 'other')]: '0+48x160' },
      },
      firing: {
        9: ['OncegateUpstreamErrors{operation="refund",class="5xx",store="s"}'],
        11.5: ['withdraw', 'refund'].map(
          (one) => `OncegateUpstreamErrors{operation="${one}",class="5xx",store="s"}`,
        ),
        20: [
          ...['withdraw', 'refund'].map(
            (one) => `OncegateUpstreamErrors{operation="${one}",class="5xx",store="s"}`,
          ),
          NO_RESULTS,
        ],
      },
    },

  'two stores under one job: one is busy and well, all fails at the other one, and its only gateway dies': {
    series: {
      ...{ ...UP, 'oncegate_keys_in_doubt{operation="withdraw"}': '2x40 0x80' },
      ...{
        [requests('outcome="executed"')]: '0+1000x120',
        [slow()]: '0+1000x120',
        [slow('', '+Inf')]: '0+1000x120',
      },
      [requests('instance="b",outcome="outcome_unknown"')]: '0+4x80 stale',
      ...{ [slow('instance="b",')]: '0x80 stale', [slow('instance="b",', '10')]: '0+4x80 stale' },
      [slow('instance="b",', '+Inf')]: '0+4x80 stale',
      ...{ [measured('oncegate')]: '0+1000x120', [quick('oncegate')]: '0+1000x120' },
      oncegate_merchants_expiring: '0x120',
      'oncegate_merchants_expiring{instance="b"}': '1x80 stale',
      'up{instance="b"}': '1x80 0x40',
      'oncegate_build_info{instance="b"}': '1x80 stale',
      'oncegate_store_info{instance="b",store="t"}': '1x80 stale',
      'oncegate_keys_in_doubt{instance="b",operation="withdraw"}': '3x80 stale',
      // Nobody knows what becomes of any payout of the other one, which are few beside those of the first.
      [responses('2xx')]: '0+1000x120',
      'oncegate_upstream_responses_total{instance="b",operation="withdraw",class="unknown"}': '0+4x80 stale',
    },
    firing: {
      9: [
        ...['s', 't'].map((store) => `OncegateInDoubt{operation="withdraw",store="${store}"}`),
        ...OF_OTHER_STORE,
      ],
      15: [
        ...['OncegateInDoubt{operation="withdraw",store="t"}', ...OF_OTHER_STORE],
        'OncegateUpstreamSlow{operation="withdraw",store="t"}',
      ],
      25: [
        ...['OncegateInDoubt{operation="withdraw",store="t"}', 'OncegateGatewayDown{instance="b"}'],
        'OncegateResultsBurnFast{objective="results",store="t"}',
      ],
    },
    values: [
      {
        ...{ expr: 'job_store_operation:oncegate_keys_in_doubt:max', minute: 9 },
        samples: Object.fromEntries(
          ['s 2', 't 3'].map((one) => {
            const [store = '', keys] = one.split(' ');
            const labels = `job="oncegate", operation="withdraw", store="${store}"`;
            return [`job_store_operation:oncegate_keys_in_doubt:max{${labels}}`, Number(keys)];
          }),
        ),
      },
    ],
  },

  'after 66 minutes, secret keys are refused for 66: all of them, half of them, and beside a flood none that passed before':
    {
      series: {
        ...UP,
        [requests('outcome="executed"')]: '0+20x264 5280x264 5300+20x40',
        [refused('invalid_key')]: '0x264 20+20x263 5280x40',
        [requests('job="half",outcome="forwarded"')]: '0+10x568',
        [requests('job="half",instance="b",outcome="replayed"')]: '0+10x264 2640x304',
        [refused('insufficient_scope', 'job="half",instance="b",')]: '0x264 10+10x303',
        // These page nobody: a flood, one that was there before the evening came, and a scanner that finds nearly no traffic.
        [requests('job="flood",outcome="executed"')]: '0+20x568',
        [refused('invalid_key', 'job="flood",')]: '0x264 1000+1000x303',
        [requests('job="evening",outcome="executed"')]: '0+20x264 5286+6x303',
        [refused('invalid_key', 'job="evening",')]: '0+30x568',
        [requests('job="idle",outcome="executed"')]: '0+0.25x264 66x304',
        [refused('missing_credentials', 'job="idle",')]: '0x264 1+1x303',
      },
      firing: {
        ...{ 67: [], 70.5: KEYS_REFUSED, 131: KEYS_REFUSED, 139: KEYS_REFUSED.slice(1) },
      },
    },

  'one of two gateways observes for more than an hour': {
    series: { ...UP, oncegate_observing: '1x260 0x80', 'oncegate_observing{instance="b"}': '0x340' },
    firing: { 59: [], 61: ['OncegateObserving{instance="a"}'], 70: [] },
  },

  'a key in doubt, which two gateways count, until it is resolved': {
    series: {
      ...{ ...UP, 'oncegate_store_info{instance="b",store="s"}': '1x640' },
      'oncegate_keys_in_doubt{operation="withdraw"}': '0x40 1x265 0x40',
      'oncegate_keys_in_doubt{instance="b",operation="withdraw"}': '0x42 1x265 0x38',
    },
    firing: { 9: [], 10.5: IN_DOUBT.slice(0, 1), 75: IN_DOUBT.slice(0, 1), 80: [] },
  },

  'an old key in doubt, while the only gateway restarts and has not counted yet': {
    series: {
      ...{ up: '1x40 0x2 1x100', oncegate_build_info: '1x40 stale _x1 1x101' },
      'oncegate_store_info{store="s"}': '1x40 stale _x1 1x101',
      'oncegate_keys_in_doubt{operation="withdraw"}': '1x40 stale _x1 0x1 1x100',
      oncegate_oldest_in_doubt_seconds: '9000x40 stale _x1 0x1 9000x100',
      oncegate_in_doubt_page_after_seconds: '3600x40 stale _x1 3600x102',
    },
    firing: { 9.5: IN_DOUBT, 10: IN_DOUBT, 10.5: IN_DOUBT, 11: IN_DOUBT },
  },

  'an old key in doubt, while no gateway runs any more, until one is back and counts none': {
    series: {
      ...{ up: '1x40 0x400 1x60', oncegate_build_info: '1x40 stale _x399 1x60' },
      'oncegate_store_info{store="s"}': '1x40 stale _x399 1x60',
      'oncegate_keys_in_doubt{operation="withdraw"}': '1x40 stale _x399 0x60',
      oncegate_oldest_in_doubt_seconds: '9000x40 stale _x399 0x60',
      oncegate_in_doubt_page_after_seconds: '3600x40 stale _x399 3600x60',
    },
    firing: {
      15: [...IN_DOUBT, 'OncegateGatewayDown{instance="a"}'],
      105: [...IN_DOUBT, 'OncegateGatewayDown{instance="a"}'],
      114: [],
    },
  },

  'failing and slow requests for twenty minutes, a little over the limits at one gateway or operation': {
    series: {
      ...UP,
      'oncegate_store_duration_seconds_count{command="start",result="ok"}': '0+988x140',
      'oncegate_store_duration_seconds_count{command="start",result="failed"}': '0+12x80 960x60',
      'oncegate_store_duration_seconds_count{instance="b",command="start",result="ok"}': '0+992x140',
      'oncegate_store_duration_seconds_count{instance="b",command="start",result="failed"}': '0+8x140',
      [requests('outcome="executed"')]: '0+896x140',
      [requests('outcome="upstream_unreachable"')]: '0+52x80 4160x60',
      [requests('outcome="overloaded"')]: '0+52x80 4160x60',
      [requests('instance="b",outcome="executed"')]: '0+904x140',
      [requests('instance="b",outcome="upstream_unreachable"')]: '0+48x140',
      [requests('instance="b",outcome="overloaded"')]: '0+48x140',
      'oncegate_requests_total{operation="none",outcome="invalid_key"}': '0+10000x140',
      'oncegate_requests_total{operation="none",outcome="overloaded"}': '0+2x80 160x60',
      'oncegate_key_probes_total{result="overloaded"}': '0x140',
      'oncegate_upstream_duration_seconds_bucket{operation="withdraw",le="5"}': '0+94x80 7620+100x60',
      'oncegate_upstream_duration_seconds_bucket{operation="withdraw",le="10"}': '0+100x140',
      'oncegate_upstream_duration_seconds_bucket{operation="withdraw",le="+Inf"}': '0+100x140',
      'oncegate_upstream_duration_seconds_bucket{operation="balance",le="5"}': '0+96x140',
      'oncegate_upstream_duration_seconds_bucket{operation="balance",le="10"}': '0+100x140',
      'oncegate_upstream_duration_seconds_bucket{operation="balance",le="+Inf"}': '0+100x140',
    },
    firing: {
      ...{ 1: [...BURNING, NO_RESULTS], 2: OF_BACKEND, 3: FAILING, 10: OVER_LIMITS },
      11: [...OVER_LIMITS, 'OncegateUpstreamSlow{operation="withdraw",store="s"}'],
      // The store fails no more.
      21.5: [...BURNING, NO_RESULTS],
      30: [...BURNING, NO_RESULTS],
    },
    // Half of the window is over.
    values: Object.entries({ upstream_unreachable: 274, overloaded: 274 }).map(([name, value]) => ({
      expr: `round(10000 * job_instance:oncegate_${name}:ratio_rate5m{instance="a"})`,
      ...{ minute: 22.5, samples: { '{job="oncegate",instance="a"}': value } },
    })),
  },

  'the gateways fail 2 % of the requests for half an hour': {
    series: {
      ...UP,
      [requests('outcome="executed"')]: '0+880x480',
      [requests('outcome="store_unavailable"')]: '0x40 10+10x119 1200x320',
      [requests('outcome="internal_error"')]: '0x40 5+5x119 600x320',
      [requests('instance="b",outcome="executed"')]: '0+100x480',
      [requests('instance="b",outcome="shutting_down"')]: '0x40 3+3x119 360x320',
      [requests('instance="b",outcome="overloaded"')]: '0x40 2+2x119 240x320',
      // These are not failures of the gateway; but merchants get no result.
      'oncegate_requests_total{operation="none",outcome="invalid_key"}': '0+100000x480',
      [requests('outcome="outcome_unknown"')]: '0+500x480',
      [requests('outcome="request_in_flight"')]: '0+500x480',
    },
    firing: {
      9: [NO_RESULTS],
      20: [...BURNING, NO_RESULTS],
      72: [...burning('Availability', 'oncegate', 'Slowly'), NO_RESULTS],
    },
    values: [
      {
        ...{ expr: `round(1000 * ${RATIO_5M})`, minute: 30 },
        samples: { '{job="oncegate",store="s",objective="availability"}': 20 },
      },
    ],
  },

  'the gateway adds more than 25 ms to 15 % and 0.9 % of the requests for ten minutes': {
    series: {
      ...UP,
      ...{ [measured('many')]: '0+1000x40 40000+1000x440', [quick('many')]: '0+850x40 34000+1000x440' },
      ...{ [measured('few')]: '0+1000x40 40000+1000x440', [quick('few')]: '0+991x40 39640+1000x440' },
      ...{ [measured('few', 'none')]: '0+1000x480', [quick('few', 'none')]: '0+10x480' },
    },
    firing: {
      10: burning('Latency', 'many', 'Fast', 'Slowly'),
      50: burning('Latency', 'many', 'Slowly'),
    },
  },

  'gateways that are restarted: one had failures before, another one fails requests, and one has none': {
    series: {
      ...UP,
      [requests('job="before",outcome="executed"')]: '100000+100x40 0+100x440',
      [requests('job="before",outcome="overloaded"')]: '5000x40 0x440',
      [requests('job="before",instance="b",outcome="executed"')]: '0x480',
      [requests('job="before",instance="b",outcome="overloaded"')]: '0x480',
      [requests('job="failing",outcome="executed"')]: '0+970x40 0+970x440',
      [requests('job="failing",outcome="internal_error"')]: '0+30x40 0+30x440',
    },
    firing: {
      10.5: burning('Availability', 'failing', 'Fast', 'Slowly'),
      20: burning('Availability', 'failing', 'Fast', 'Slowly'),
    },
    values: [
      {
        ...{ expr: `round(1000 * ${RATIO_5M})`, minute: 12 },
        samples: {
          '{job="before",store="s",objective="availability"}': 0,
          '{job="failing",store="s",objective="availability"}': 30,
        },
      },
    ],
  },
};

it('alerts fire when they should, and only then', () => {
  expect(complaintsAboutRules(CASES)).toBe('');
}, 120_000);

it('every alert fires in a case, and has the labels there that its texts name', () => {
  const fired = Object.values(CASES).flatMap(({ firing = {} }) => Object.values(firing).flat());
  eachRow(
    rules.filter(({ alert }) => alert),
    ({ alert, annotations }) => {
      const texts = fired.filter((one) => one.split('{')[0] === alert);
      expect(texts).not.toEqual([]);
      // Every alert of these cases has a job.
      const named = annotationLabels(annotations).filter((label) => label !== 'job');
      for (const label of named)
        expect(
          texts.some((one) => one.includes(`${label}="`)),
          label,
        ).toBe(true);
    },
  );
});

const version = (instance: string, number: string): string =>
  `oncegate_build_info{instance="${instance}",version="${number}",node="24",commit="c"}`;
const mark = (number: string): string => `{job="oncegate", version="${number}", commit="c"}`;
const reloads = (result: string): string => `oncegate_config_reloads_total{result="${result}"}`;

/** Grafana evaluates annotations once a minute: series with a value for each minute, and when an annotation has which series. */
const ANNOTATIONS: { annotation: string; series: Series; marks: Record<number, string[]> }[] = [
  {
    // A deployment replaces one gateway after the other.
    annotation: 'New versions',
    series: {
      ...{ [version('a', '1')]: '1x90 stale', [version('a', '2')]: '_x90 1x60' },
      ...{ [version('b', '1')]: '1x95 stale', [version('b', '2')]: '_x95 1x60' },
    },
    marks: { 89: [], 90: [mark('2')], 91: [], 95: [], 100: [] },
  },
  {
    // A gateway is away for some minutes.
    annotation: 'New versions',
    series: { [version('a', '1')]: '1x70 stale _x10 1x40' },
    marks: { 65: [], 75: [], 82: [], 83: [] },
  },
  {
    // The version before is back.
    annotation: 'New versions',
    series: { [version('a', '1')]: '1x70 stale _x80 1x20', [version('a', '2')]: '_x70 1x80 stale' },
    marks: { 69: [], 70: [mark('2')], 71: [], 152: [mark('1')], 153: [] },
  },
  {
    // A configuration is refused and then corrected.
    annotation: 'Changed configurations',
    series: { [reloads('refused')]: '0x10 1x30', [reloads('ok')]: '0x20 1x20' },
    marks: {
      ...{ 10: [], 11: ['{job="oncegate", instance="a", result="refused"}'], 15: [] },
      ...{ 21: ['{job="oncegate", instance="a", result="ok"}'], 30: [] },
    },
  },
];

it('annotations of the dashboards mark what happened, and only then', () => {
  const [first = { annotations: { list: [] } }, ...others] = dashboards;
  for (const { annotations } of others) expect(annotations).toEqual(first.annotations);
  const tests = ANNOTATIONS.map(({ annotation, series, marks }) => {
    const expr = first.annotations.list.find((one) => one.name === annotation)?.expr ?? '';
    expect(expr, annotation).not.toBe('');
    const filled = expr.replaceAll('$job', 'oncegate').replaceAll('$instance', 'a|b');
    // Of a counter of whole numbers only whether it grew.
    const values = Object.entries(marks).map(([minute, expected]) => ({
      ...{ expr: `(${filled}) > bool 0`, minute: Number(minute) },
      samples: Object.fromEntries(expected.map((labels) => [labels, 1])),
    }));
    return { ...toPromtool([annotation, { series, values }]), interval: '1m' };
  });
  expect(complaintsAbout(tests)).toBe('');
});

it('the dashboards show no keys in doubt of a gateway that has not counted them lately, such as 0 after a restart without the store', () => {
  const found = queries.filter(({ expr }) => /oncegate_(?:keys_|oldest_in_doubt)/.test(expr));
  expect(found.length).toBe(5);
  const series = (name: string, values: Record<string, string>) =>
    Object.entries(values).map(([instance, samples]) => ({
      series: `${name}{job="oncegate", instance="${instance}", operation="withdraw"}`,
      values: samples,
    }));
  const [late, fresh] = [{ late: '0x40' }, { fresh: '3x40' }];
  const complaints = complaintsAbout([
    {
      interval: '15s',
      input_series: [
        ...['keys_in_doubt', 'keys_owner_gone', 'oldest_in_doubt_seconds'].flatMap((name) =>
          series(`oncegate_${name}`, { ...late, ...fresh }),
        ),
        ...series('oncegate_doubts_counted_timestamp_seconds', { ...late, fresh: '0+15x40' }),
        { series: 'oncegate_store_info{job="oncegate", instance="late", store="unknown"}', values: '1x40' },
        { series: 'oncegate_store_info{job="oncegate", instance="fresh", store="s"}', values: '1x40' },
      ],
      promql_expr_test: found.map(({ expr }) => ({
        expr: `sum by (store) (${expr.replace(/\$(?:job|instance|operation)/g, '.*')})`,
        eval_time: '10m',
        exp_samples: [{ labels: '{store="s"}', value: 3 }],
      })),
    },
  ]);
  expect(complaints).toBe('');
});
