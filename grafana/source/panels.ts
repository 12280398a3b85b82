import type { Color, DataSource, FieldConfig, Override, Panel, Step, Target, Unit } from './model.ts';

/** The data source that was chosen at the top of the dashboard. */
export const dataSource: DataSource = { type: 'prometheus', uid: `\${datasource}` };

/** Selects the chosen gateways. */
export const GATEWAYS = 'job=~"$job", instance=~"$instance"';
/** Selects the chosen operations of the chosen gateways. */
export const OPERATIONS = `${GATEWAYS}, operation=~"$operation"`;

/** One query and the name of its lines. `{{label}}` is replaced by the label's value. */
export interface Query {
  expr: string;
  legend: string;
}

interface Common {
  title: string;
  description: string;
  unit: Unit;
  queries: Query[];
  /** Ascending; below the first it is green. */
  thresholds?: { [color in Exclude<Color, 'green'>]?: number };
}

interface StatOptions extends Common {
  decimals?: number;
  /** Colour below the first threshold. */
  ground?: Color;
}

interface SeriesOptions extends Common {
  /** Areas on top of each other: only for parts of a whole. */
  stacked?: boolean;
  max?: number;
  /** Colours of lines, by name. */
  colors?: { [name: string]: Color };
}

/** One number, as of now. Without data it says "no data", which must not look like "all is well". */
export function stat(options: StatOptions): Panel {
  const { title, description, unit, queries, decimals = 0, ground = 'green' } = options;
  return {
    ...{ type: 'stat', title, description, datasource: dataSource },
    fieldConfig: {
      defaults: {
        ...{ unit, decimals, min: 0, noValue: 'no data', mappings: [] },
        color: { mode: 'thresholds' },
        thresholds: { mode: 'absolute', steps: stepsOf(options.thresholds, ground) },
      },
      overrides: [],
    },
    options: {
      colorMode: 'background',
      graphMode: 'none',
      justifyMode: 'auto',
      orientation: 'vertical',
      reduceOptions: { calcs: ['lastNotNull'], fields: '', values: false },
      textMode: queries.length > 1 ? 'value_and_name' : 'value',
      wideLayout: true,
      showPercentChange: false,
      percentChangeColorMode: 'standard',
    },
    targets: targetsOf(queries, 'instant'),
  };
}

/** Lines over time. Thresholds are drawn as dashed lines. */
export function series(options: SeriesOptions): Panel {
  const { title, description, unit, queries, stacked = false, max, colors = {} } = options;
  const defaults: FieldConfig['defaults'] = {
    ...{ unit, min: 0, mappings: [] },
    color: { mode: 'palette-classic' },
    thresholds: { mode: 'absolute', steps: stepsOf(options.thresholds) },
    custom: {
      drawStyle: 'line',
      lineInterpolation: 'linear',
      lineWidth: 1,
      fillOpacity: stacked ? 30 : 8,
      gradientMode: 'none',
      showPoints: 'never',
      spanNulls: false,
      stacking: { mode: stacked ? 'normal' : 'none', group: 'A' },
      thresholdsStyle: { mode: options.thresholds ? 'dashed' : 'off' },
    },
  };
  if (max !== undefined) defaults.max = max;
  return {
    ...{ type: 'timeseries', title, description, datasource: dataSource },
    fieldConfig: { defaults, overrides: Object.entries(colors).map(colored) },
    options: {
      legend: { displayMode: 'table', placement: 'bottom', showLegend: true, calcs: ['lastNotNull', 'max'] },
      tooltip: { mode: 'multi', sort: 'desc' },
    },
    targets: targetsOf(queries, 'range'),
  };
}

/** One bar per line, coloured by its state, which is `1` or `0`. */
export function states(options: Common & { good: string; bad: string; goodIs?: 0 | 1 }): Panel {
  const { title, description, unit, queries, good, bad, goodIs = 1 } = options;
  const badIs = 1 - goodIs;
  const text = {
    [goodIs]: { text: good, color: 'green', index: 0 },
    [badIs]: { text: bad, color: 'red', index: 1 },
  };
  const [of0, of1] = goodIs === 1 ? (['red', 'green'] as const) : (['green', 'red'] as const);
  return {
    ...{ type: 'state-timeline', title, description, datasource: dataSource },
    fieldConfig: {
      defaults: {
        unit,
        color: { mode: 'thresholds' },
        thresholds: {
          mode: 'absolute',
          steps: [
            { color: of0, value: null },
            { color: of1, value: 1 },
          ],
        },
        mappings: [{ type: 'value', options: text }],
        custom: { fillOpacity: 70, lineWidth: 0 },
        noValue: 'no data',
      },
      overrides: [],
    },
    options: {
      alignValue: 'left',
      legend: { displayMode: 'list', placement: 'bottom', showLegend: false, calcs: [] },
      mergeValues: true,
      rowHeight: 0.8,
      showValue: 'auto',
      tooltip: { mode: 'single', sort: 'none' },
    },
    targets: targetsOf(queries, 'range'),
  };
}

/** The median and the tail of a histogram, over all chosen gateways. */
export function quantiles(histogram: string, selector: string): Query[] {
  return [0.5, 0.95, 0.99].map((quantile) => ({
    expr: `histogram_quantile(${quantile}, sum by (le) (rate(${histogram}_bucket{${selector}}[$__rate_interval])))`,
    legend: `p${quantile * 100}`,
  }));
}

/** Events per second, added up by these labels. */
export function rateBy(labels: string, counter: string, selector: string): string {
  return `sum by (${labels}) (rate(${counter}{${selector}}[$__rate_interval]))`;
}

/** Events within the last day. */
export function lastDay(counter: string, selector: string): string {
  return `sum(increase(${counter}{${selector}}[24h]))`;
}

function targetsOf(queries: Query[], kind: 'instant' | 'range'): Target[] {
  return queries.map(({ expr, legend }, index) => ({
    refId: String.fromCharCode(65 + index),
    datasource: dataSource,
    editorMode: 'code',
    expr,
    legendFormat: legend,
    range: kind === 'range',
    instant: kind === 'instant',
  }));
}

function stepsOf(thresholds: Common['thresholds'] = {}, ground: Color = 'green'): Step[] {
  const steps = Object.entries(thresholds).map(([color, value]) => ({ color: color as Color, value }));
  return [{ color: ground, value: null }, ...steps];
}

function colored([name, color]: [string, Color]): Override {
  const properties = [{ id: 'color', value: { mode: 'fixed', fixedColor: color } }];
  return { matcher: { id: 'byName', options: name }, properties };
}
