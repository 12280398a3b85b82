/** The largest amount taken, in major units: far below the point where a double loses cents. */
export const MAX_AMOUNT = 1_000_000_000_000;

/**
 * Major units as a client sends them to the integer minor units that the ledger keeps.
 * Undefined for anything that is not a positive number with at most two decimals: rounding money silently
 * would book another amount than the one that was asked for.
 */
export function toMinor(amount: unknown): number | undefined {
  if (typeof amount !== 'number' || !Number.isFinite(amount)) return undefined;
  if (amount <= 0 || amount > MAX_AMOUNT) return undefined;
  const minor = Math.round(amount * 100);
  return minor / 100 === amount ? minor : undefined;
}

export function toMajor(minor: number): number {
  return minor / 100;
}
