import type { Row } from '../dashboard.ts';
import { toLogs } from '../links.ts';
import { type PanelOptions, series, stat, states, units } from '../panels.ts';
import { GATEWAYS, lastDay, rateBy } from '../queries.ts';

/** Also on the overview. */
export const gatewaysUp = (place: Pick<PanelOptions, 'size' | 'details'>) =>
  states({
    title: 'Gateways up',
    description:
      'Whether Prometheus gets an answer from the admin port. Red: the process is down, cannot be reached, or refuses the ' +
      "admin token. Do: look at the instance's `/healthz` and `/readyz`, which names the check that fails, and at its log.",
    unit: units.Short,
    queries: [{ expr: `up{${GATEWAYS}}`, legend: '{{instance}}' }],
    ...{ good: 'up', bad: 'down' },
    ...{ ...place, runbook: 'oncegategatewaydown' },
  });

/** Which gateways run, in which version, and with which configuration. */
export const gateways: Row = {
  title: 'Gateways and configuration',
  panels: [
    gatewaysUp({ size: [8, 7] }),
    series({
      title: 'Gateways by version',
      description:
        'How many gateways run each version, on which Node, built from which commit. More than one line for longer than a ' +
        'deployment takes: some gateways were not replaced. Do: look at the deployment of the instances with the older version.',
      unit: units.Short,
      queries: [
        {
          expr: `count by (version, node, commit) (oncegate_build_info{${GATEWAYS}})`,
          legend: '{{version}}, Node {{node}}, {{commit}}',
        },
      ],
      ...{ size: [8, 7], runbook: 'deploy-and-stop' },
    }),
    series({
      title: 'Gateways by configuration',
      description:
        'How many gateways have each mode, handling of undeclared requests, store, source of secret keys and number of workers. ' +
        'More than one line for longer than a deployment takes: the gateways have different configurations, perhaps even ' +
        'different stores. Do: compare their files.',
      unit: units.Short,
      queries: [
        {
          expr: `count by (mode, undeclared, store, keys, workers) (oncegate_config_info{${GATEWAYS}})`,
          legend: '{{mode}}, undeclared: {{undeclared}}, {{store}}, keys: {{keys}}, workers: {{workers}}',
        },
      ],
      ...{ size: [8, 7], runbook: 'change-the-configuration' },
    }),
    series({
      title: 'Configuration warnings',
      description:
        'How many warnings each part of a gateway has: at its start, and on `/readyz`. They do not stop the gateway, but each can ' +
        'harm it later. Do: `/readyz` and the log lines of the start say them in words.',
      unit: units.Short,
      queries: [
        {
          expr: `max by (instance, about) (oncegate_config_warnings{${GATEWAYS}})`,
          legend: '{{instance}}: {{about}}',
        },
      ],
      thresholds: { yellow: 1 },
      ...{ size: [8, 7], runbook: 'oncegatestoreunsafe' },
    }),
    series({
      title: 'Spans of traces',
      description:
        'With `tracing.endpoint`: spans that the collector has taken (exported), those that it refused or did not answer for (failed), ' +
        'and those that were thrown away because too many waited (dropped). Requests are not affected. Do: look at the collector; the ' +
        'log says why. Without tracing all lines are 0.',
      unit: units.OpsPerSecond,
      queries: [{ expr: rateBy('result', 'oncegate_spans_total', GATEWAYS), legend: '{{result}}' }],
      colors: { exported: 'green', failed: 'red', dropped: 'orange' },
      size: [8, 7],
    }),
    stat({
      title: 'Configuration reloads, last 24 h',
      description:
        'Changes of the configuration file. refused: the file has a mistake, the old configuration stays in force, and the gateway ' +
        'would not start with the file. needs restart: a part of the file is not in force. Do: the log names every mistake; correct ' +
        'the file before a restart.',
      unit: units.Short,
      queries: [
        { expr: lastDay('oncegate_config_reloads_total', `${GATEWAYS}, result="ok"`), legend: 'accepted' },
        {
          expr: lastDay('oncegate_config_reloads_total', `${GATEWAYS}, result="needs_restart"`),
          legend: 'needs restart',
        },
        {
          expr: lastDay('oncegate_config_reloads_total', `${GATEWAYS}, result="refused"`),
          legend: 'refused',
        },
      ],
      ground: 'blue',
      own: {
        refused: { ground: 'green', thresholds: { red: 0.5 } },
        'needs restart': { ground: 'green', thresholds: { yellow: 0.5 } },
      },
      dataLinks: [toLogs('Log lines', 'msg=~`.*configuration.*`')],
      ...{ size: [8, 7], runbook: 'oncegateconfigrefused' },
    }),
  ],
};
