import type { Row } from './model.ts';
import { GATEWAYS, lastDay, series, stat, states } from './panels.ts';

/** Who is there to keep the promise, and whom they would let in. */
export const gateways: Row = {
  title: 'Gateways and secret keys',
  panels: [
    {
      ...{ width: 8, height: 6 },
      panel: states({
        title: 'Gateways up',
        description:
          'Whether Prometheus gets an answer from the admin port. Red: the process is down, cut off, or refuses the admin ' +
          "token. Do: look at the instance's `/healthz` and `/readyz`, which names the check that fails, and at its log.",
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
          'Secret keys that each gateway knows. A fall means merchants get 401. Lines that differ for more than a few ' +
          'seconds mean that gateways run on different key files. Do: compare the key files; a new one that is broken is ' +
          'refused as a whole, and the keys before it stay in force.',
        unit: 'short',
        queries: [{ expr: `oncegate_secret_keys{${GATEWAYS}}`, legend: '{{instance}}' }],
      }),
    },
    {
      ...{ width: 4, height: 6 },
      panel: stat({
        title: 'Key reloads refused, last 24 h',
        description:
          'Changes of the key file that a gateway refused, one for each worker. The old keys stay in force, so a key that ' +
          'was to be revoked still works. Do: `/readyz` and the log say what is wrong; correct the file.',
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
          'Changes of the key file that the gateways took, one for each worker. Nought after a change of yours means ' +
          'that they read another file. Do: check `auth.keys.path` and what is mounted there.',
        unit: 'short',
        queries: [
          { expr: lastDay('oncegate_key_reloads_total', `${GATEWAYS}, result="ok"`), legend: 'taken' },
        ],
        ground: 'blue',
      }),
    },
  ],
};
