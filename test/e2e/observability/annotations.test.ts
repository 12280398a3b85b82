import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { stringify } from 'yaml';
import { temporaryFolder } from '../../support/config.ts';
import { dashboards } from './support/artifacts.ts';
import { promtool } from './support/promtool.ts';

/** Series with a value for each minute, and when an annotation has which series. */
interface Case {
  annotation: string;
  series: { [series: string]: string };
  marks: { [minute: string]: string[] };
}

const build = (instance: string, version: string): string =>
  `oncegate_build_info{job="oncegate", instance="${instance}", version="${version}", node="24", commit="c"}`;
const mark = (version: string): string => `{job="oncegate", version="${version}", commit="c"}`;
const reloads = (result: string): string =>
  `oncegate_config_reloads_total{job="oncegate", instance="a", result="${result}"}`;

/** Grafana evaluates annotations once a minute. */
const cases: Record<string, Case> = {
  'a deployment that replaces one gateway after the other': {
    annotation: 'New versions',
    series: {
      [build('a', '1')]: '1x90 stale',
      [build('b', '1')]: '1x95 stale',
      [build('a', '2')]: '_x90 1x60',
      [build('b', '2')]: '_x95 1x60',
    },
    marks: { 89: [], 90: [mark('2')], 91: [], 95: [], 100: [] },
  },
  'a gateway that is away for some minutes': {
    annotation: 'New versions',
    series: { [build('a', '1')]: '1x70 stale _x10 1x40' },
    marks: { 65: [], 75: [], 82: [], 83: [] },
  },
  'the return to the version before': {
    annotation: 'New versions',
    series: { [build('a', '1')]: '1x70 stale _x80 1x20', [build('a', '2')]: '_x70 1x80 stale' },
    marks: { 69: [], 70: [mark('2')], 71: [], 152: [mark('1')], 153: [] },
  },
  'a configuration that is refused and then corrected': {
    annotation: 'Changed configurations',
    series: { [reloads('refused')]: '0x10 1x30', [reloads('ok')]: '0x20 1x20' },
    marks: {
      10: [],
      11: ['{job="oncegate", instance="a", result="refused"}'],
      15: [],
      21: ['{job="oncegate", instance="a", result="ok"}'],
      30: [],
    },
  },
};

it('annotations mark what happened, and only then', () => {
  const { annotations } = dashboards[0] ?? { annotations: { list: [] } };
  const tests = Object.entries(cases).map(([name, { annotation, series, marks }]) => {
    const expr = annotations.list.find((one) => one.name === annotation)?.expr ?? '';
    expect(expr, annotation).not.toBe('');
    const filled = expr.replaceAll('$job', 'oncegate').replaceAll('$instance', 'a|b');
    return {
      ...{ name, interval: '1m' },
      input_series: Object.entries(series).map(([of, values]) => ({ series: of, values })),
      promql_expr_test: Object.entries(marks).map(([minute, expected]) => ({
        // Of a counter of whole numbers only whether it grew.
        ...{ expr: `(${filled}) > bool 0`, eval_time: `${minute}m` },
        exp_samples: expected.map((labels) => ({ labels, value: 1 })),
      })),
    };
  });
  const file = join(temporaryFolder(), 'annotations.yaml');
  writeFileSync(file, stringify({ tests }));
  expect(promtool('test', 'rules', file)).toBe('');
});

it('all dashboards have the same annotations', () => {
  const [first, ...others] = dashboards.map(({ annotations }) => annotations);
  for (const other of others) expect(other).toEqual(first);
});
