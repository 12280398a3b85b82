import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import { hasDuplicateMember } from '../kernel/duplicate-member.ts';
import { valuesOf } from '../kernel/fields.ts';

/** A member of a JSON body, a form body or the query. */
interface Member {
  name: string;
  /** All readers take the name as it is, but for its letter case. */
  isPlain: boolean;
  value: unknown;
  /** Only some readers find it: those that also split a query at a semicolon. */
  isDisputed: boolean;
}

/** What a request says of itself, or why two readers could find different members. */
export type Members = { kind: 'members'; members: readonly Member[] } | { kind: 'unclear'; reason: string };

/** Names of members, and the value that each must have. */
export type Where = readonly (readonly [name: string, value: string])[];

type Answer = 'yes' | 'no' | 'unclear';

/** A member that overrides the method in common frameworks. */
const METHOD_MEMBER = '_method';

const unclear = (reason: string): Members => ({ kind: 'unclear', reason });

/** Whether frameworks may run the request under the method that a member of its query names. */
export const overridesMethod = (query: string): boolean =>
  query !== '' && membersOfForm(query).some(({ name }) => readsAs(name, METHOD_MEMBER));

/** @param body undefined if it was too large to be read */
export function membersOf(req: IncomingMessage, query: string, body: Buffer | undefined): Members {
  const inBody = body ? membersOfBody(req.rawHeaders, body) : unclear('its body is too large to be read');
  if (query !== '' && query.split(/[&;]/, MOST_MEMBERS + 1).length > MOST_MEMBERS)
    return unclear('its query has too many members');
  if (inBody.kind === 'unclear') return inBody;
  const members = query === '' ? inBody.members : [...membersOfForm(query), ...inBody.members];
  if (members.some((member) => isCalled(member, METHOD_MEMBER)))
    return unclear('a member may override the method');
  return { kind: 'members', members };
}

/**
 * Whether the members select an operation. Anything but a clear yes or no is unclear: loosely typed backends take `true`
 * or `0` for any text, and others ignore the case of names or trim values.
 */
export function selects(members: readonly Member[], where: Where): Answer {
  let answer: Answer = 'yes';
  for (const [name, wanted] of where) {
    const one = hasMember(members, name, wanted);
    if (one === 'no') return 'no';
    if (one === 'unclear') answer = 'unclear';
  }
  return answer;
}

function hasMember(members: readonly Member[], name: string, wanted: string): Answer {
  const variable = variableName(name);
  const found = members.filter((member) => isCalled(member, variable));
  const [only] = found;
  if (!only) return 'no';
  if (found.length > 1 || only.isDisputed || only.name !== name || typeof only.value !== 'string')
    return 'unclear';
  if (only.value === wanted) return 'yes';
  return readsAs(only.value, wanted) ? 'unclear' : 'no';
}

const NO_MEMBERS: Members = { kind: 'members', members: [] };
/** Characters mean the same bytes in these, as far as names and values of members go. */
const KNOWN_CHARSET = /^"?(?:utf-?8|us-ascii|ascii|iso-8859-1)"?$/;

function membersOfBody(headers: readonly string[], body: Buffer): Members {
  if (body.length === 0) return NO_MEMBERS;
  const codings = valuesOf(headers, 'content-encoding');
  if (codings.some((coding) => coding.trim().toLowerCase() !== 'identity'))
    return unclear('its body has a content coding');
  const types = valuesOf(headers, 'content-type');
  if (types.length > 1) return unclear('it has two content types');
  // As almost every request has it.
  if (types[0] === 'application/json') return membersOfJson(body);
  const [type = '', ...parameters] = (types[0] ?? '').toLowerCase().split(';');
  for (const parameter of parameters) {
    const [name = '', charset = ''] = parameter.split('=');
    if (name.trim() === 'charset' && !KNOWN_CHARSET.test(charset.trim()))
      return unclear('its body has an unusual charset');
  }
  if (type.trim() === 'application/x-www-form-urlencoded') {
    const text = body.toString('latin1');
    if (LOOKS_LIKE_JSON.test(text)) return unclear('its body is called a form and looks like JSON');
    return membersOfFormBody(text);
  }
  if (IS_JSON.test(type.trim())) return membersOfJson(body);
  return /^(?:text\/plain)?$/.test(type.trim())
    ? membersOfText(body)
    : unclear('its body is neither JSON nor a form');
}

const IS_JSON = /^(?:[a-z]+\/json|application\/[a-z0-9.-]+\+json)$/;

/** Backends that read the body as JSON whatever its type would find other members in it. The prefix is a byte order mark. */
const LOOKS_LIKE_JSON = /^(?:\xef\xbb\xbf)?\s*[[{]/;

/** PHP reads no more members of a form or a query by default. */
const MOST_MEMBERS = 1000;

function membersOfFormBody(text: string): Members {
  if (text.split(/[&;]/, MOST_MEMBERS + 1).length > MOST_MEMBERS)
    return unclear('its body has too many members');
  return { kind: 'members', members: membersOfForm(text) };
}

/** A body that means the same to every parser: UTF-8 without a byte order mark, one JSON object, no member twice. */
function membersOfJson(body: Buffer): Members {
  if (!isUtf8(body)) return unclear('its body is not valid UTF-8');
  const text = body.toString();
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return unclear('its body is not valid JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return unclear('its body is not a JSON object');
  if (hasDuplicateMember(text)) return unclear('its body has a member twice');
  const object = value as Record<string, unknown>;
  const members = Object.keys(object).map((name) => memberNamed(name, object[name]));
  return { kind: 'members', members };
}

const memberNamed = (name: string, value: unknown): Member => {
  const isPlain = PLAIN_NAME.test(name);
  return { name, isPlain, value, isDisputed: false };
};

/** JSON without a type that says so. CGI libraries take a body without a type for a form. */
function membersOfText(body: Buffer): Members {
  const inJson = membersOfJson(body);
  if (inJson.kind === 'unclear' || !body.includes('=')) return inJson;
  const inForm = membersOfFormBody(body.toString('latin1'));
  if (inForm.kind === 'unclear') return inForm;
  const disputed = inForm.members.map((member) => ({ ...member, isDisputed: true }));
  return { kind: 'members', members: [...inJson.members, ...disputed] };
}

/** Members of a query or a form, in latin1: names and values that matter are ASCII. */
function membersOfForm(text: string): Member[] {
  if (text === '') return [];
  return text.split('&').flatMap((part) => {
    const [whole = '', ...others] = part.split(';');
    const members = others.map((other) => ({ ...memberOf(other), isDisputed: true }));
    // Readers that split at the semicolon find another value for the first member.
    const isDisputed = others.length > 0 || ASP_ESCAPE.test(whole);
    return [{ ...memberOf(whole), isDisputed }, ...members];
  });
}

function memberOf(part: string): Omit<Member, 'isDisputed'> {
  const sign = part.indexOf('=');
  const name = decoded(sign < 0 ? part : part.slice(0, sign));
  return { name, isPlain: PLAIN_NAME.test(name), value: sign < 0 ? '' : decoded(part.slice(sign + 1)) };
}

/** Classic ASP and ASP.NET read it; others leave it as it is. */
const ASP_ESCAPE = /%u[0-9a-f]{4}/i;

const decoded = (text: string): string =>
  text
    .replaceAll('+', ' ')
    .replace(/%(?:([0-9a-f]{2})|u([0-9a-f]{4}))/gi, (_, byte: string | undefined, unit: string) =>
      String.fromCharCode(Number.parseInt(byte ?? unit, 16)),
    );

/**
 * The name of the variable that PHP makes of a member's name: without leading spaces, up to NUL or a bracket, with
 * underscores in place of dots and spaces.
 */
function variableName(name: string): string {
  if (PLAIN_NAME.test(name)) return name;
  const [upToNul = ''] = name.split('\0', 1);
  const [upToBracket = ''] = upToNul.trim().split('[', 1);
  return upToBracket.trim().replaceAll(/[. ]/g, '_');
}

/** Whether some reader finds the member under this name. PHP also makes an underscore of a bracket that is not closed. */
function isCalled({ name, isPlain }: Member, variable: string): boolean {
  if (isPlain) return isSameWord(name, variable);
  if (readsAs(variableName(name), variable)) return true;
  return name.includes('[') && readsAs(variableName(name.replace('[', '_')), variable);
}

const PLAIN_NAME = /^[\w-]*$/;
const PRINTABLE = /^[\x21-\x7e]*$/;
/** NFKC makes one UTF-16 unit of eight at most. A longer text is not normalized: ICU takes quadratic time for some. */
const MOST_SHRINKING = 8;

const isSameWord = (text: string, word: string): boolean =>
  text.length === word.length && text.toLowerCase() === word.toLowerCase();

/** Whether lenient readers take a text for this word: without case, surrounding space and NULs, or in C up to the first NUL. */
function readsAs(text: string, word: string): boolean {
  if (PRINTABLE.test(text)) return isSameWord(text, word);
  const [upToNul = ''] = text.split('\0', 1);
  const trimmed = text.replaceAll('\0', ' ').trim();
  // NFKC makes ASCII letters of their wide and decorated forms.
  return [upToNul.trim(), trimmed].some(
    (reading) =>
      reading.length <= MOST_SHRINKING * word.length &&
      reading.normalize('NFKC').toLowerCase() === word.toLowerCase(),
  );
}
