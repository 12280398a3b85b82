import type { CATALOGUE } from './catalogue.ts';

type Level = 'error' | 'warn' | 'info' | 'debug';
type Metric = keyof typeof CATALOGUE;

/** A field of a line of the log. */
export interface LogField<T = unknown, O extends boolean = boolean> {
  /** What it means, for the operator. */
  readonly about: string;
  /** The words that it may be, or its type. */
  readonly is:
    | readonly T[]
    | 'text'
    | 'texts'
    | 'integer'
    | 'number'
    | 'milliseconds'
    | 'true'
    | 'error'
    | 'digest';
  readonly isOptional: O;
  /** How many digits are logged of an identifier in hexadecimal digits. */
  readonly digits?: number | undefined;
}

/** A message of the log. `Told`: what is told to `emit`. */
export interface LogEvent<Told = unknown> {
  readonly level: Level;
  /** The level of the second event and later ones, by the field `times`. Default: `level`. */
  readonly laterLevel?: Level;
  /** A constant text. The fields say what happened. */
  readonly message: string;
  /** What has happened, and what to do, in one or two sentences for the operator. */
  readonly meaning: string;
  readonly fields: Readonly<Record<string, LogField>>;
  /** Counts the event. Its labels are what is told under their names. */
  readonly metric?: Metric | undefined;
  /** The labels that never change. */
  readonly labels?: Readonly<Record<string, string>> | undefined;
  readonly told?: Told;
}

type LabelValue<V> = V extends readonly (infer W)[] ? W : string;
export type LabelsOf<M extends Metric> = {
  -readonly [L in keyof (typeof CATALOGUE)[M]['labels']]: LabelValue<(typeof CATALOGUE)[M]['labels'][L]>;
};

type Value<F> = F extends LogField<infer T> ? T : never;
type Values<F> = {
  [N in keyof F as F[N] extends LogField<unknown, true> ? never : N]: Value<F[N]>;
} & { [N in keyof F as F[N] extends LogField<unknown, true> ? N : never]?: Value<F[N]> | undefined };

/** Makes events of this level. */
export const at =
  (level: Level) =>
  <
    F extends LogEvent['fields'],
    M extends Metric = never,
    const L extends Record<string, string> = Record<never, string>,
  >(
    ...[message, meaning, fields, metric, labels]: [string, string, F, M?, L?]
  ): LogEvent<Values<F> & ([M] extends [never] ? unknown : Omit<LabelsOf<M>, keyof L>)> => ({
    level,
    message,
    meaning,
    fields,
    metric,
    labels,
  });

/** Makes fields of this type, which each line of their event has. */
export const field =
  <T>(is: LogField<T>['is']) =>
  (about: string, digits?: number): LogField<T, false> => ({ about, is, isOptional: false, digits });
export const text = field<string>('text');
export const texts = field<readonly string[]>('texts');
export const int = field<number>('integer');
export const ms = field<number>('milliseconds');
export const responseDigest = field<object>('digest');
export const oneOf = <const T extends string>(words: readonly T[], about: string) => field<T>(words)(about);
export const optional = <T>(given: LogField<T>): LogField<T, true> => ({ ...given, isOptional: true });
