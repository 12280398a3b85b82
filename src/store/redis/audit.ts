import type { AuditRecord } from '../doubts.ts';
import { UnreadableRecord } from '../types.ts';

/** Changes with what an older gateway would misread. */
const FORMAT = 1;

/** One line of a key's audit trail, as JSON. */
export const encodeAudit = (record: AuditRecord): Buffer =>
  Buffer.from(JSON.stringify({ format: FORMAT, ...record }));

/** @throws {UnreadableRecord} for a line of another format, or a damaged one, which has none */
export function decodeAudit(line: string): AuditRecord {
  const { format = 'none', ...record } = parsed(line);
  if (format === FORMAT) return record;
  const found = String(format).slice(0, 20);
  throw new UnreadableRecord(`its audit trail has format ${found}, and this version knows format ${FORMAT}`);
}

function parsed(line: string): AuditRecord & { format?: unknown } {
  try {
    return { ...JSON.parse(line) };
  } catch {
    return {} as AuditRecord;
  }
}
