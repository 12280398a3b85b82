import {
  BigValueColorMode,
  BigValueGraphMode,
  BigValueTextMode,
  GraphThresholdsStyleConfigBuilder,
  GraphThresholdsStyleMode,
  LegendDisplayMode,
  LegendPlacement,
  ReduceDataOptionsBuilder,
  SortOrder,
  StackingConfigBuilder,
  StackingMode,
  TooltipDisplayMode,
  VisibilityMode,
  VizLegendOptionsBuilder,
  VizTooltipOptionsBuilder,
} from '@grafana/grafana-foundation-sdk/common';
import {
  type DashboardLinkBuilder,
  FieldColorBuilder,
  FieldColorModeId,
  MappingType,
  type Threshold,
  ThresholdsConfigBuilder,
  ThresholdsMode,
} from '@grafana/grafana-foundation-sdk/dashboard';
import { DataqueryBuilder, QueryEditorMode } from '@grafana/grafana-foundation-sdk/prometheus';
import { PanelBuilder as StatBuilder } from '@grafana/grafana-foundation-sdk/stat';
import { PanelBuilder as StatesBuilder } from '@grafana/grafana-foundation-sdk/statetimeline';
import { PanelBuilder as SeriesBuilder } from '@grafana/grafana-foundation-sdk/timeseries';
import * as units from '@grafana/grafana-foundation-sdk/units';
import { type Page, toPage, toRunbook } from './links.ts';
import type { Query } from './queries.ts';

/** The data source that was chosen at the top of the dashboard. */
export const dataSource = { type: 'prometheus', uid: `\${datasource}` };

export type Color = 'green' | 'blue' | 'yellow' | 'orange' | 'red';

/** Ascending values, each the lowest that has its colour. */
export type Thresholds = { [color in Color]?: number };

export interface PanelOptions {
  title: string;
  /** What a bad value means, and what to do. */
  description: string;
  unit: string;
  queries: Query[];
  /** Columns of 24, and height. */
  size: [number, number];
  thresholds?: Thresholds;
  /** Colour below the first threshold. Default green. */
  ground?: Color;
  /** The heading of docs/operations.md that has the steps. */
  runbook?: string;
  /** The dashboard that shows more. */
  details?: Page;
  /** Links of each value. */
  dataLinks?: DashboardLinkBuilder[];
}

export interface StatOptions extends PanelOptions {
  decimals?: number;
  /** Thresholds of single values, by name, with the colour of its ground. */
  own?: { [name: string]: { ground: Color; thresholds: Thresholds } };
}

export interface SeriesOptions extends PanelOptions {
  /** Areas on top of each other: only for parts of a whole. */
  stacked?: boolean;
  max?: number;
  /** The axis begins here, or at the smallest value. Default: at 0. */
  softMin?: number;
  /** Leave out lines that are 0 all the time: for labels with many values, whose series all begin at 0. */
  onlyEvents?: boolean;
  /** Colours of lines, by name. */
  colors?: { [name: string]: Color };
}

export interface StatesOptions extends PanelOptions {
  good: string;
  bad: string;
  /** Default 1. */
  goodIs?: 0 | 1;
}

/** What all kinds of panels have. */
interface Common<T> {
  title(title: string): T;
  description(description: string): T;
  datasource(source: typeof dataSource): T;
  unit(unit: string): T;
  span(columns: number): T;
  height(height: number): T;
  links(links: DashboardLinkBuilder[]): T;
  dataLinks(links: DashboardLinkBuilder[]): T;
  targets(targets: DataqueryBuilder[]): T;
}

function fill<T extends Common<T>>(builder: T, options: PanelOptions, kind: 'instant' | 'range'): T {
  const { title, description, unit, queries, size, runbook = 'metrics.md', details, dataLinks } = options;
  const [columns, height] = size;
  const more = details ? [toPage(details, 'Details')] : [];
  builder.title(title).description(description).datasource(dataSource).unit(unit);
  builder.span(columns).height(height);
  builder.links([...more, toRunbook(runbook)]).targets(targetsOf(queries, kind));
  return dataLinks ? builder.dataLinks(dataLinks) : builder;
}

/** Numbers, as of now. Without data it says "no data", which must not look like "all is well". */
export function stat(options: StatOptions): StatBuilder {
  const { queries, decimals = 0, ground = 'green', own = {}, thresholds } = options;
  const builder = fill(new StatBuilder(), options, 'instant')
    .decimals(decimals)
    .min(0)
    .noValue('no data')
    .colorScheme(new FieldColorBuilder().mode(FieldColorModeId.Thresholds))
    .thresholds(thresholdsOf(thresholds, ground))
    .colorMode(BigValueColorMode.Background)
    .graphMode(BigValueGraphMode.None)
    .textMode(isNamed(queries) ? BigValueTextMode.ValueAndName : BigValueTextMode.Value)
    .reduceOptions(new ReduceDataOptionsBuilder().calcs(['lastNotNull']).fields('').values(false));
  for (const [name, { ground: below, thresholds: above }] of Object.entries(own))
    builder.overrideByName(name, [{ id: 'thresholds', value: thresholdsOf(above, below).build() }]);
  return builder;
}

/** Several values, or one for each value of a label, need their names. */
const isNamed = ([first, ...others]: Query[]): boolean =>
  others.length > 0 || first?.legend.includes('{{') === true;

/** Lines over time. Thresholds are drawn as dashed lines. */
export function series(options: SeriesOptions): SeriesBuilder {
  const { thresholds, ground, stacked = false, softMin, max, onlyEvents = false, colors = {} } = options;
  const builder = fill(new SeriesBuilder(), options, 'range')
    .colorScheme(new FieldColorBuilder().mode(FieldColorModeId.PaletteClassic))
    .thresholds(thresholdsOf(thresholds, ground))
    .thresholdsStyle(
      new GraphThresholdsStyleConfigBuilder().mode(
        thresholds ? GraphThresholdsStyleMode.Dashed : GraphThresholdsStyleMode.Off,
      ),
    )
    .lineWidth(1)
    .fillOpacity(stacked ? 30 : 8)
    .showPoints(VisibilityMode.Never)
    .stacking(new StackingConfigBuilder().mode(stacked ? StackingMode.Normal : StackingMode.None).group('A'))
    .legend(
      new VizLegendOptionsBuilder()
        .displayMode(LegendDisplayMode.Table)
        .placement(LegendPlacement.Bottom)
        .showLegend(true)
        .calcs(['lastNotNull', 'max'])
        .sortBy('Max')
        .sortDesc(true),
    )
    .tooltip(
      new VizTooltipOptionsBuilder()
        .mode(TooltipDisplayMode.Multi)
        .sort(SortOrder.Descending)
        .hideZeros(true),
    );
  if (softMin === undefined) builder.min(0);
  else builder.axisSoftMin(softMin);
  if (max !== undefined) builder.max(max);
  if (onlyEvents)
    builder.withOverride({
      matcher: { id: 'byValue', options: { reducer: 'allIsZero', op: 'gte', value: 0 } },
      properties: [{ id: 'custom.hideFrom', value: { viz: true, legend: true, tooltip: true } }],
    });
  for (const [name, fixedColor] of Object.entries(colors))
    builder.overrideByName(name, [{ id: 'color', value: { mode: FieldColorModeId.Fixed, fixedColor } }]);
  return builder;
}

/** One bar per line, coloured by its state, which is `1` or `0`. */
export function states(options: StatesOptions): StatesBuilder {
  const { good, bad, goodIs = 1 } = options;
  const text = {
    [goodIs]: { text: good, color: 'green', index: 0 },
    [1 - goodIs]: { text: bad, color: 'red', index: 1 },
  };
  const [ground, above] = goodIs === 1 ? (['red', 'green'] as const) : (['green', 'red'] as const);
  return fill(new StatesBuilder(), options, 'range')
    .noValue('no data')
    .colorScheme(new FieldColorBuilder().mode(FieldColorModeId.Thresholds))
    .thresholds(thresholdsOf({ [above]: 1 }, ground))
    .mappings([{ type: MappingType.ValueToText, options: text }])
    .fillOpacity(70)
    .lineWidth(0)
    .mergeValues(true)
    .rowHeight(0.8)
    .showValue(VisibilityMode.Auto)
    .legend(
      new VizLegendOptionsBuilder()
        .displayMode(LegendDisplayMode.List)
        .placement(LegendPlacement.Bottom)
        .showLegend(false)
        .calcs([]),
    );
}

export { units };

function targetsOf(queries: Query[], kind: 'instant' | 'range'): DataqueryBuilder[] {
  return queries.map(({ expr, legend, exemplars = false }, index) => {
    const query = new DataqueryBuilder()
      .refId(String.fromCharCode(65 + index))
      .datasource(dataSource)
      .editorMode(QueryEditorMode.Code)
      .expr(expr)
      .legendFormat(legend);
    if (exemplars) query.exemplar(true);
    return kind === 'instant' ? query.instant() : query.range();
  });
}

function thresholdsOf(thresholds: Thresholds = {}, ground: Color = 'green'): ThresholdsConfigBuilder {
  const steps: Threshold[] = Object.entries(thresholds).map(([color, value]) => ({ color, value }));
  return new ThresholdsConfigBuilder()
    .mode(ThresholdsMode.Absolute)
    .steps([{ color: ground, value: null }, ...steps]);
}
