const asked = process.env.ONCEGATE_ABUSE_SECONDS;

/** Whether a longer run was requested by hand. */
export const isLong: boolean = asked !== undefined;

/** The duration of a test whose length is free: ONCEGATE_ABUSE_SECONDS, or `short` by default. */
export function seconds(short: number): number {
  const value = Number(asked ?? short);
  if (!(value > 0)) throw new Error(`ONCEGATE_ABUSE_SECONDS is no number of seconds: ${asked}`);
  return value;
}

/** Prints figures if the test is run by hand. */
export function printFigures(what: string, figures: object): void {
  if (isLong) console.log(what, JSON.stringify(figures));
}
