import { isUtf8 } from 'node:buffer';
import { hasDuplicateMember } from '../kernel/duplicate-member.ts';

/**
 * Reads a body that must mean the same to every parser: UTF-8 without a byte order mark, one JSON object, no member twice.
 *
 * @returns the object's own members, or why the body is ambiguous
 */
export function readJsonObject(body: Buffer): { members: Record<string, unknown> } | { ambiguous: string } {
  if (!isUtf8(body)) return { ambiguous: 'it is not valid UTF-8' };
  const text = body.toString();
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { ambiguous: 'it is not valid JSON' };
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return { ambiguous: 'it is not a JSON object' };
  }
  if (hasDuplicateMember(text)) return { ambiguous: 'a member stands twice' };
  return { members: value as Record<string, unknown> };
}
