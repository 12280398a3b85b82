/**
 * `node grafana/generate.ts` writes grafana/dashboards/ from grafana/source/.
 *
 *   --to FOLDER          where to. Default: grafana/dashboards
 *   --runbook URL        the address of your copy of the folder docs
 *   --log-stream LOGQL   what selects the gateways' lines in Loki, values in backticks. Default: {job=`oncegate`}
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { type Dashboard, dashboardOf, type Installation } from './source/dashboard.ts';
import { internals } from './source/internals.ts';
import { overview } from './source/overview.ts';

export const FOLDER = fileURLToPath(new URL('./dashboards/', import.meta.url));

/** As in config/prometheus.rules.yaml, so that one replacement serves both. */
const DEFAULTS: Installation = {
  runbook: 'https://runbooks.example/oncegate/docs',
  logStream: '{job=`oncegate`}',
};

/** @throws if the log stream has a double quote or a backslash, which would break the links to logs */
function dashboardsOf(installation: Installation = DEFAULTS): Dashboard[] {
  if (/["\\]/.test(installation.logStream))
    throw new Error('--log-stream: put its values in backticks: {app=`x`}');
  return [overview, internals].map((page) => dashboardOf(page, installation));
}

/** What each file must have, by its name. */
export const textsOf = (installation?: Installation): Map<string, string> =>
  new Map(
    dashboardsOf(installation).map((dashboard) => [
      `${dashboard.uid}.json`,
      `${JSON.stringify(dashboard, null, 2)}\n`,
    ]),
  );

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      to: { type: 'string', default: FOLDER },
      runbook: { type: 'string', default: DEFAULTS.runbook },
      'log-stream': { type: 'string', default: DEFAULTS.logStream },
    },
  });
  mkdirSync(values.to, { recursive: true });
  for (const [name, text] of textsOf({ runbook: values.runbook, logStream: values['log-stream'] })) {
    writeFileSync(join(values.to, name), text);
    console.log(`written: ${join(values.to, name)}`);
  }
}
