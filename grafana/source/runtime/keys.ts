import type { Row } from '../dashboard.ts';
import { toLogs } from '../links.ts';
import { series, stat, units } from '../panels.ts';
import { GATEWAYS, increaseBy, lastDay, orZero, rateBy } from '../queries.ts';

/** Grafana wants milliseconds since 1970. Where nothing ends there is one line at 0, in 1970. */
const whenFirst = (metric: string) => [
  { expr: orZero(`min by (instance) (${metric}{${GATEWAYS}}) * 1000`, 'instance'), legend: '{{instance}}' },
];

/** Files that a gateway reads again when they change. */
const reloads = (counter: string) => ({
  queries: [
    { expr: lastDay(counter, `${GATEWAYS}, result="ok"`), legend: 'accepted' },
    { expr: lastDay(counter, `${GATEWAYS}, result="refused"`), legend: 'refused' },
  ],
  ground: 'blue' as const,
  own: { refused: { ground: 'green' as const, thresholds: { red: 0.5 } } },
});

export const keys: Row = {
  title: 'Secret keys',
  panels: [
    series({
      title: 'Secret keys loaded',
      description:
        'Secret keys that each gateway knows. If the number falls, merchants get 401. If the lines differ for more than a few ' +
        'seconds, the gateways use different key files. Do: compare the key files. A gateway refuses a broken file as a ' +
        'whole, and the old keys stay in force. The second line of each gateway counts the merchants ' +
        'whose keys all end within seven days.',
      unit: units.Short,
      queries: [
        { expr: `oncegate_secret_keys{${GATEWAYS}}`, legend: '{{instance}}' },
        { expr: `oncegate_merchants_expiring{${GATEWAYS}}`, legend: '{{instance}}, merchants that end' },
      ],
      ...{ size: [8, 7], runbook: 'rotate-secret-keys' },
    }),
    series({
      title: 'First merchant without a key',
      description:
        'When the first merchant has no valid secret key left, and gets 401 for every request. "none" in 1970: no merchant\'s ' +
        'keys end. Do: `oncegate keys list` names the merchant; issue a new key with `oncegate keys issue`, and send it.',
      unit: units.DateTimeFromNow,
      queries: whenFirst('oncegate_secret_key_expires_timestamp_seconds'),
      ...{ size: [8, 7], runbook: 'oncegatekeyexpires' },
    }),
    stat({
      title: 'Key reloads, last 24 h',
      description:
        'Changes of the secret keys; each worker counts its own. refused: the old keys stay in force, so a revoked key still ' +
        'works. If accepted stays 0 after you changed the file, the gateways read another file. Do: `/readyz` and the log name ' +
        'the mistake; check `auth.keys.path` and what is mounted there.',
      unit: units.Short,
      ...reloads('oncegate_key_reloads_total'),
      dataLinks: [toLogs('Log lines', 'msg=~`the secret keys .*`')],
      ...{ size: [8, 7], runbook: 'oncegatekeyfilerefused' },
    }),
    series({
      title: 'Probes of secret keys',
      description:
        'With `auth.keys.source: upstream`: how often the gateways asked the backend whose secret key it is. Many `refused` or ' +
        '`overloaded`: someone tries invented keys. `failed`: the backend does not answer, and new keys get 503. ' +
        '`merchant_changed`: the backend names another merchant than before, and the key is refused. Do: `/readyz` and the ' +
        'log say why; docs/operations.md#keys-of-the-backend has the steps.',
      unit: units.OpsPerSecond,
      queries: [{ expr: rateBy('result', 'oncegate_key_probes_total', GATEWAYS), legend: '{{result}}' }],
      ...{ size: [24, 6], runbook: 'keys-of-the-backend' },
    }),
  ],
};

export const tls: Row = {
  title: 'Certificates and TLS',
  panels: [
    series({
      title: 'Certificates expire',
      description:
        'When the first certificate of a gateway expires: of the listener, or of the gateway towards the backend or Redis. ' +
        '"none" in 1970: there is no certificate. Do: put new files into place of the old ones; the gateway reads them by ' +
        'itself.',
      unit: units.DateTimeFromNow,
      queries: whenFirst('oncegate_certificate_expires_timestamp_seconds'),
      ...{ size: [8, 7], runbook: 'oncegatecertificateexpires' },
    }),
    stat({
      title: 'New certificates, last 24 h',
      description:
        'Changes of certificate files; each worker counts its own. refused: the old certificate stays in use ' +
        'until it expires. Do: `/readyz` and the log name the mistake; correct the files.',
      unit: units.Short,
      ...reloads('oncegate_certificate_reloads_total'),
      ...{ size: [8, 7], runbook: 'oncegatecertificaterefused' },
    }),
    series({
      title: 'TLS handshakes that failed',
      description:
        'Connections that were closed because their handshake failed, in each step. disconnected: also probes that only ' +
        'connect. refused: no TLS version in common, or a certificate that the other side does not trust. Do: if merchants ' +
        'report it, compare their TLS versions with the oldest one that the gateway allows, and their authorities with the ' +
        'certificate.',
      unit: units.Short,
      queries: [
        {
          expr: increaseBy('reason', 'oncegate_tls_handshakes_failed_total', GATEWAYS),
          legend: '{{reason}}',
        },
      ],
      ...{ size: [8, 7], runbook: 'certificates' },
    }),
  ],
};
