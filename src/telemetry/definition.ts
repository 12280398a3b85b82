/**
 * The values of a label. They are bounded: a list of words; or a set of the configuration, whose size the schema limits; or a
 * description of this process, which is one series.
 */
export type LabelValues = readonly string[] | ConfiguredSet | 'of this process';

/**
 * `operations`: the names in the configuration, `other` and `undeclared`. `operations, none`: those, and `none` for requests
 * that are refused before they are identified. `merchants`: the codes of `metrics.merchants`, and `other` for all others.
 */
export type ConfiguredSet = 'operations' | 'operations, none' | 'merchants';

export interface Definition<T extends string = string, L extends string = string> {
  readonly type: T;
  /** The unit is in the name; `_total`: a count. */
  readonly name: string;
  readonly help: string;
  readonly labels: Readonly<Record<L, LabelValues>>;
  /**
   * How a query combines the values of several gateways. `max` is also for what all of them read from the store, which
   * a sum would count several times.
   */
  readonly combine: 'sum' | 'max' | 'min';
  /**
   * When a series exists. `start`: from the start, at 0, for every combination of label values. Otherwise the condition, in words;
   * where the condition does not hold, 0 would be wrong.
   */
  readonly exists: 'start' | (string & {});
  /** A histogram whose buckets keep the trace id of their newest request. */
  readonly hasExemplars?: boolean;
  /** A histogram of which the console shows percentiles. */
  readonly isFine?: boolean;
  /** Upper bounds of a histogram, in the unit of the name. */
  readonly buckets?: readonly number[];
  /** The measured time includes the backend's, so the histogram gets bounds around the time limits: {@link boundsAround}. */
  readonly isLimited?: boolean;
}

/** What a metric may have beside its name. Default: no labels, `sum`, and series that exist from the start. */
type Given<S> = { labels?: S } & Partial<
  Pick<Definition, 'combine' | 'exists' | 'buckets' | 'isLimited' | 'isFine' | 'hasExemplars'>
>;

const define =
  <T extends string>(type: T) =>
  <const S extends Definition['labels'] = Record<never, never>>(
    name: string,
    help: string,
    given: Given<S> = {},
  ) => {
    const defaults = { labels: {}, combine: 'sum', exists: 'start' } as const;
    return { type, name, help, ...defaults, ...given } as Definition<T, keyof S & string> & { labels: S };
  };

export const counter = define('counter');
export const gauge = define('gauge');
export const histogram = define('histogram');
