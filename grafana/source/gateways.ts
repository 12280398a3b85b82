import type { Row } from './model.ts';
import { GATEWAYS, lastDay, series, stat, states } from './panels.ts';

/** Which gateways run, and how many secret keys they know. */
export const gateways: Row = {
  title: 'Gateways and secret keys',
  panels: [
    {
      ...{ width: 8, height: 6 },
      panel: states({
        title: 'Gateways up',
        description:
          'Whether Prometheus gets an answer from the admin port. Red: the process is down, cannot be reached, or refuses the ' +
          "admin token. Do: look at the instance's `/healthz` and `/readyz`, which names the check that fails, and at its log.",
        unit: 'short',
        queries: [{ expr: `up{${GATEWAYS}}`, legend: '{{instance}}' }],
        good: 'up',
        bad: 'down',
      }),
    },
    {
      ...{ width: 8, height: 6 },
      panel: series({
        title: 'Secret keys loaded',
        description:
          'Secret keys that each gateway knows. If the number falls, merchants get 401. If the lines differ for more than a few ' +
          'seconds, the gateways use different key files. Do: compare the key files. A gateway refuses a broken file as a ' +
          'whole, and the old keys stay in force. The second line of each gateway counts the merchants ' +
          'whose keys all end within seven days.',
        unit: 'short',
        queries: [
          { expr: `oncegate_secret_keys{${GATEWAYS}}`, legend: '{{instance}}' },
          { expr: `oncegate_merchants_expiring{${GATEWAYS}}`, legend: '{{instance}}, merchants that end' },
        ],
      }),
    },
    {
      ...{ width: 4, height: 6 },
      panel: stat({
        title: 'Key reloads refused, last 24 h',
        description:
          'Changes of the key file that a gateway refused; each worker counts its own. The old keys stay in force, so a revoked ' +
          'key still works. Do: `/readyz` and the log name the mistake; correct the file.',
        unit: 'short',
        queries: [
          { expr: lastDay('oncegate_key_reloads_total', `${GATEWAYS}, result="refused"`), legend: 'refused' },
        ],
        thresholds: { red: 0.5 },
      }),
    },
    {
      ...{ width: 4, height: 6 },
      panel: stat({
        title: 'Key reloads, last 24 h',
        description:
          'Changes of the key file that the gateways accepted; each worker counts its own. If it stays 0 after you changed the ' +
          'file, the gateways read another file. Do: check `auth.keys.path` and what is mounted there.',
        unit: 'short',
        queries: [
          { expr: lastDay('oncegate_key_reloads_total', `${GATEWAYS}, result="ok"`), legend: 'accepted' },
        ],
        ground: 'blue',
      }),
    },
  ],
};
