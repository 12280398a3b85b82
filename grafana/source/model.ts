/** The part of Grafana's dashboard model (schema version 39, Grafana 10 to 12) that this dashboard uses. */

export interface DataSource {
  type: 'prometheus';
  uid: string;
}

export interface Target {
  refId: string;
  datasource: DataSource;
  editorMode: 'code';
  expr: string;
  legendFormat: string;
  range: boolean;
  instant: boolean;
}

export type Color = 'green' | 'blue' | 'yellow' | 'orange' | 'red';

/** The colour from `value` upwards; `null` is the lowest step. */
export interface Step {
  color: Color;
  value: number | null;
}

export interface Override {
  matcher: { id: 'byName'; options: string };
  properties: { id: string; value: unknown }[];
}

/** Ids of Grafana's units. */
export type Unit = 'short' | 'reqps' | 'ops' | 's' | 'bytes' | 'percentunit';

export interface FieldConfig {
  defaults: {
    unit: Unit;
    color: { mode: 'palette-classic' | 'thresholds' };
    thresholds: { mode: 'absolute'; steps: Step[] };
    mappings: object[];
    custom?: object;
    decimals?: number;
    min?: number;
    max?: number;
    noValue?: string;
  };
  overrides: Override[];
}

/** A panel before it has its position and its number. */
export interface Panel {
  type: 'stat' | 'timeseries' | 'state-timeline';
  title: string;
  /** What a bad value means, and what to do. */
  description: string;
  datasource: DataSource;
  fieldConfig: FieldConfig;
  options: object;
  targets: Target[];
}

/** Panels under a heading, each with its width in columns of 24, and its height. */
export interface Row {
  title: string;
  panels: { width: number; height: number; panel: Panel }[];
}

export interface GridPos {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface RowHead {
  type: 'row';
  title: string;
  collapsed: boolean;
  panels: never[];
}

export type PlacedPanel = (Panel | RowHead) & { id: number; gridPos: GridPos };

export interface Variable {
  name: string;
  label: string;
  type: 'datasource' | 'query';
  [option: string]: unknown;
}

export interface Dashboard {
  id: null;
  uid: string;
  title: string;
  description: string;
  tags: string[];
  schemaVersion: number;
  version: number;
  editable: boolean;
  /** 1: one crosshair for all panels. */
  graphTooltip: 0 | 1 | 2;
  timezone: string;
  refresh: string;
  time: { from: string; to: string };
  timepicker: object;
  fiscalYearStartMonth: number;
  weekStart: string;
  liveNow: boolean;
  links: object[];
  templating: { list: Variable[] };
  annotations: { list: object[] };
  panels: PlacedPanel[];
}
