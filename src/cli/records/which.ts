import { scopeOf } from '../../idempotency/fingerprint.ts';
import { Exit } from '../exit.ts';

/** Options that name one record. */
export const WHICH = {
  scope: { type: 'string' },
  merchant: { type: 'string' },
  key: { type: 'string' },
} as const;

/** @throws {Exit} 64 unless exactly one record is named */
export function scopeNamed(
  { scope, merchant, key }: { scope?: string; merchant?: string; key?: string },
  usage: string,
): string {
  if (scope !== undefined && merchant === undefined && key === undefined) return scope;
  if (scope === undefined && merchant !== undefined && key !== undefined) return scopeOf(merchant, key);
  throw new Exit(`name one record: --scope, or --merchant and --key\n\n${usage}`, 64);
}
