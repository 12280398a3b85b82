import { LineCounter, parseDocument, type YAMLError } from 'yaml';
import { hasDuplicateMember } from '../kernel/duplicate-member.ts';

export type YamlReading = { kind: 'value'; value: unknown } | { kind: 'mistakes'; mistakes: string[] };

/** Enough for a shared list of scopes in a large file; too little to blow a small file up. */
const MAX_ALIASES = 10_000;

/** YAML 1.2 whatever a directive says: 1.1 makes times of the thirteenth month, and booleans of `no` and `on`. */
const OPTIONS = {
  schema: 'core',
  resolveKnownTags: false,
  stringKeys: true,
  prettyErrors: false,
  logLevel: 'error',
} as const;

/**
 * Reads one YAML document that may hold secrets: mistakes tell the place and the kind, and never quote the text,
 * which the library's own messages do.
 */
export function readYaml(bytes: Uint8Array): YamlReading {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return { kind: 'mistakes', mistakes: ['the file: is not UTF-8'] };
  }
  const json = readJson(text);
  if (json) return json;
  const lines = new LineCounter();
  // Warnings (of an unknown tag, say) are mistakes too; left alone they would be printed with the text around them.
  const document = parseDocument(text, { ...OPTIONS, lineCounter: lines });
  const errors: YAMLError[] = [...document.errors, ...document.warnings];
  if (errors.length > 0)
    return { kind: 'mistakes', mistakes: errors.map((error) => mistakeOf(error, lines)) };
  try {
    return { kind: 'value', value: document.toJS({ maxAliasCount: MAX_ALIASES }) };
  } catch {
    return { kind: 'mistakes', mistakes: ['the file: has too many aliases, or one that leads nowhere'] };
  }
}

/** JSON is YAML that is read thirty times as fast. A member that occurs twice is left to the YAML reader, which says where. */
function readJson(text: string): YamlReading | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return hasDuplicateMember(text) ? undefined : { kind: 'value', value };
  } catch {
    return undefined;
  }
}

function mistakeOf(error: YAMLError, lines: LineCounter): string {
  const { line, col } = lines.linePos(error.pos[0]);
  return `line ${line}, column ${col}: is not valid YAML (${error.code.toLowerCase().replaceAll('_', ' ')})`;
}
