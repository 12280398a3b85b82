const asked = process.env.ONCEGATE_ABUSE_SECONDS;

/** Was a longer run asked for, by hand? */
export const isLong: boolean = asked !== undefined;

/** How long a test goes on that may as well go on for a minute: ONCEGATE_ABUSE_SECONDS, or else `short`. */
export function seconds(short: number): number {
  const value = Number(asked ?? short);
  if (!(value > 0)) throw new Error(`ONCEGATE_ABUSE_SECONDS is no number of seconds: ${asked}`);
  return value;
}

/** Figures, for whoever runs it by hand. */
export function tell(what: string, figures: object): void {
  if (isLong) console.log(what, JSON.stringify(figures));
}
