import { onTestFinished, test } from 'vitest';
import { startPrometheus } from '../../support/prometheus.ts';
import { openStack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';

const ALWAYS = `
groups:
  - name: test
    rules:
      - alert: Scraped
        expr: oncegate_secret_keys > 0
`;

test('a real Prometheus scrapes the gateway and evaluates rules', async () => {
  const stack = await openStack();
  onTestFinished(() => stack.close());
  const prometheus = await startPrometheus({ targets: [new URL(stack.adminUrl).host], rules: [ALWAYS] });
  onTestFinished(() => prometheus.stop());
  await until(async () => (await prometheus.query('up == 1')).length === 1);
  await until(async () => (await prometheus.alerts()).some(({ state }) => state === 'firing'));
  await until(async () => (await prometheus.queryRange('up', 60)).some(({ values }) => values.at(-1) === 1));
});
