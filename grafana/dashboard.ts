/** `node grafana/dashboard.ts` writes grafana/dashboards/oncegate.json from grafana/source/. */
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { oncegate } from './source/oncegate.ts';

export const DASHBOARD_FILE = fileURLToPath(new URL('./dashboards/oncegate.json', import.meta.url));

/** The text that the file must have. */
export const dashboardText = (): string => `${JSON.stringify(oncegate, null, 2)}\n`;

if (import.meta.main) {
  writeFileSync(DASHBOARD_FILE, dashboardText());
  console.log(`written: ${DASHBOARD_FILE}`);
}
