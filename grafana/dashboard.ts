/** `node grafana/dashboard.ts` writes grafana/dashboards/oncegate.json. What to change is in grafana/source/. */
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { oncegate } from './source/oncegate.ts';

export const DASHBOARD_FILE = fileURLToPath(new URL('./dashboards/oncegate.json', import.meta.url));

/** The file as it has to be. */
export const dashboardText = (): string => `${JSON.stringify(oncegate, null, 2)}\n`;

if (import.meta.main) {
  writeFileSync(DASHBOARD_FILE, dashboardText());
  console.log(`written: ${DASHBOARD_FILE}`);
}
