import { type AuditRecord, UnreadableRecord } from '../contract.ts';

/** Changes with what an older gateway would misread. */
const FORMAT = 1;

/** One line of a scope's audit trail, as JSON. */
export const encodeAudit = (record: AuditRecord): Buffer =>
  Buffer.from(JSON.stringify({ format: FORMAT, ...record }));

/** @throws {UnreadableRecord} for a line of another format */
export function decodeAudit(line: string): AuditRecord {
  const { format, ...record } = parsed(line);
  if (format !== FORMAT)
    throw new UnreadableRecord(
      `its audit trail has format ${String(format ?? 'none').slice(0, 20)}, and this version knows format ${FORMAT}`,
    );
  return record;
}

function parsed(line: string): AuditRecord & { format?: unknown } {
  try {
    const value = JSON.parse(line);
    if (typeof value?.from === 'object' && typeof value.to === 'object') return value;
  } catch {
    // As for other JSON.
  }
  throw new UnreadableRecord('its audit trail is damaged');
}
