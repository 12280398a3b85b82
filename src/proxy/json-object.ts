import { hasDuplicateMember } from '../kernel/duplicate-member.ts';

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * Reads a body that must mean the same to every parser: UTF-8 without a byte order mark, one JSON object, no member twice.
 *
 * @returns the object's own members, or why the body is ambiguous
 */
export function readJsonObject(body: Buffer): { members: Record<string, unknown> } | { ambiguous: string } {
  let text: string;
  let value: unknown;
  try {
    text = decoder.decode(body);
    value = JSON.parse(text);
  } catch (error) {
    return { ambiguous: error instanceof SyntaxError ? 'it is not valid JSON' : 'it is not valid UTF-8' };
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return { ambiguous: 'it is not a JSON object' };
  }
  if (hasDuplicateMember(text)) return { ambiguous: 'a member stands twice' };
  return { members: value as Record<string, unknown> };
}
