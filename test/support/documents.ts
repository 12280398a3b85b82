import { spawnSync } from 'node:child_process';
import { read } from './repository.ts';

const SHELL = ['sh', 'bash', 'console'];

/** A block of code in a document, without the indentation that a list gives it. */
export interface Block {
  /** The nearest heading above it. */
  heading: string;
  /** The word after the backticks: `sh`. */
  language: string;
  text: string;
}

/** A command, and what the document shows as its output. */
export interface Command {
  text: string;
  /** What a `console` block shows; empty in other blocks. */
  output: string;
}

/** The blocks of a document, in order; with a heading, only those between it and the next one. @throws if there are none */
export function blocksOf(document: string, heading?: string): Block[] {
  const blocks: Block[] = [];
  let current = '';
  const text = read(document);
  for (const found of text.matchAll(/^#+ (.+)$|^( *)```(\w*).*\n((?:.*\n)*?)\2```$/gm)) {
    const [, title, indentation = '', language = '', lines = ''] = found;
    current = title ?? current;
    if (title === undefined)
      blocks.push({ heading: current, language, text: unindented(lines, indentation) });
  }
  const wanted = heading === undefined ? blocks : blocks.filter((block) => block.heading === heading);
  if (heading !== undefined && wanted.length === 0)
    throw new Error(`${document} has no block under "${heading}"`);
  return wanted;
}

/** Replaces what differs between runs, such as ids and times, so that an output can be compared with the one of a document. */
export const steady = (text: string): string =>
  text
    .replaceAll('\r', '')
    .replaceAll(/(wd_)[0-9a-f]{32}/g, '$1ID')
    .replaceAll(/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/g, 'ID')
    .replaceAll(/\b\d{4}-\d\d-\d\d[T ][\d:.]+Z?/g, 'TIME')
    .replaceAll(/^Date: .*$/gm, 'Date: NOW')
    .replaceAll(/\b[0-9a-f]{8}(?:…|[0-9a-f]{40}\b)/g, 'RECORD_ID')
    .replaceAll(/^\d+ {2,}/gm, 'COUNT ')
    .replaceAll(/ +$/gm, '')
    .trimEnd();

const isShell = ({ language }: Block): boolean => SHELL.includes(language);

const unindented = (lines: string, indentation: string) =>
  lines.replaceAll(new RegExp(`^${indentation}`, 'gm'), '');

/** The commands for a shell under a heading of a document. @throws if there are none */
export const commandsUnder = (document: string, heading: string): Command[] =>
  blocksOf(document, heading).filter(isShell).flatMap(commandsOf);

/** The commands of a block. A command goes on while a quote, a function, a here-document or a backslash is open. */
export function commandsOf({ language, text }: Block): Command[] {
  const commands: Command[] = [];
  let open = '';
  for (const line of text.trimEnd().split('\n')) {
    const isPrompt = language === 'console' && line.startsWith('$ ');
    if (open === '' && language === 'console' && !isPrompt) {
      const last = commands.at(-1);
      if (last) last.output += `${line}\n`;
      continue;
    }
    if (open === '' && (line.trim() === '' || line.startsWith('#'))) continue;
    open += isPrompt ? line.slice(2) : `${open && '\n'}${line}`;
    if (!isWhole(open)) continue;
    commands.push({ text: open, output: '' });
    open = '';
  }
  if (open !== '') throw new Error(`the command has no end: ${open}`);
  return commands;
}

function isWhole(text: string): boolean {
  if (text.endsWith('\\')) return false;
  const [, end] = /<<'?(\w+)'?$/m.exec(text) ?? [];
  if (end !== undefined && !text.split('\n').slice(1).includes(end)) return false;
  return spawnSync('sh', ['-n', '-c', text]).status === 0;
}

const PROGRAMS =
  'curl|docker|git|journalctl|kill|kubectl|node|npm|npx|oncegate|openssl|perf|promtool|redis-cli|sqlite3|ss|ssh|systemctl|wrk';
const COMMAND = new RegExp(`^(?:[A-Z_]+=\\S+ )*(?:${PROGRAMS}) \\S`);

/** The commands within the sentences of a document, without the variables before them. */
export function commandsWithin(document: string): string[] {
  const sentences = read(document).replaceAll(/^( *)```[\s\S]*?^\1```$/gm, '');
  return [...sentences.matchAll(/`([^`]+)`/g)]
    .map(([, code = '']) => code.replaceAll(/\s+/g, ' '))
    .filter((code) => COMMAND.test(code))
    .map((code) => code.replace(/^(?:[A-Z_]+=\S+ )+/, ''));
}
