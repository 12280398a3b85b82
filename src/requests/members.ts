import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import { hasDuplicateMember } from './duplicate-member.ts';
import { valuesOf } from './fields.ts';

/** A member of a JSON body, a form body, the query or a cookie. */
interface Member {
  name: string;
  /** All parsers agree on the name, except for its letter case. */
  isPlain: boolean;
  value: unknown;
  /** Parsers disagree about the member or its value. For example, only some of them split a query at semicolons. */
  isDisputed: boolean;
}

/** The members of a request, or why two parsers could find different ones. */
export type Members = { kind: 'members'; members: readonly Member[] } | { kind: 'unclear'; reason: string };

/** The members that select an operation: names, and the value that each must have. */
export type Where = readonly (readonly [name: string, value: string])[];

type Answer = 'yes' | 'no' | 'unclear';

/** Whether common frameworks run a request with this member under the method that it names. The second name is that of ASP.NET MVC. */
const namesMethod = (member: Member): boolean =>
  mayBeNamed(member, '_method') || mayBeNamed(member, 'x-http-method-override');

/** PHP ignores the members of a form or a query beyond this number, by default. */
const MAX_MEMBERS = 1000;

const NO_MEMBERS: Members = { kind: 'members', members: [] };

const unclear = (reason: string): Members => ({ kind: 'unclear', reason });

/** Whether a member of the query or a cookie may override the method. */
export const overridesMethod = ({ rawHeaders }: IncomingMessage, query: string): boolean =>
  [...membersOfForm(query), ...membersOfCookies(rawHeaders)].some(namesMethod);

/** A type of bodies in which frameworks look for members. Some read a body without a type as a form. */
const MAY_HAVE_MEMBERS = /form|multipart|json|text|^\s*$/i;

/** Whether the body has to be read to know that it does not override the method. */
export function mayHaveMembers({ rawHeaders }: IncomingMessage): boolean {
  const types = valuesOf(rawHeaders, 'content-type');
  return types.length === 0 || types.some((type) => MAY_HAVE_MEMBERS.test(type));
}

/**
 * A name of {@link namesMethod} as a whole word, or a name that PHP turns into the first one; or a name in a multipart body that readers
 * put together from parts.
 */
const OVERRIDE = /(?<![\w.-])(?:[._[]method|x-http-method-override)(?![\w-])|\bname(?:\*\d|\s*=\s*"?=\?)/i;

/**
 * Why a member of the body may override the method. Looks for the word anywhere in the text, so that parsers need not agree on what
 * the members are.
 *
 * @param body undefined if it was too large to be read
 */
export function overrideInBody(req: IncomingMessage, body: Buffer | undefined): string | undefined {
  if (!mayHaveMembers(req) || body?.length === 0) return undefined;
  if (!body) return 'its body is too large to be read';
  const types = valuesOf(req.rawHeaders, 'content-type');
  if (hasCoding(req.rawHeaders)) return 'its body has a content coding';
  if (types.some(hasUnusualCharset)) return 'its body has an unusual charset';
  const text = decoded(body.toString('latin1').replaceAll('\0', '')).replace(
    /\\(?:u([0-9a-f]{4}))?/gi,
    (_, unit: string | undefined) => (unit ? String.fromCharCode(Number.parseInt(unit, 16)) : ''),
  );
  return OVERRIDE.test(text) ? 'a member of its body may override the method' : undefined;
}

/**
 * Finds the members of a request in its query, its body and its cookies.
 *
 * @param query without its question mark
 * @param body undefined if it was too large to be read
 */
export function membersOf(req: IncomingMessage, query: string, body: Buffer | undefined): Members {
  const inBody = body ? membersOfBody(req.rawHeaders, body) : unclear('its body is too large to be read');
  if (query !== '' && query.split(/[&;]/, MAX_MEMBERS + 1).length > MAX_MEMBERS)
    return unclear('its query has too many members');
  if (inBody.kind === 'unclear') return inBody;
  const outside = [...membersOfForm(query), ...membersOfCookies(req.rawHeaders)];
  const members = outside.length === 0 ? inBody.members : [...outside, ...inBody.members];
  if (members.some(namesMethod)) return unclear('a member may override the method');
  return { kind: 'members', members };
}

/**
 * Whether the members select an operation. `unclear` where backends could disagree: loosely typed ones compare `true` or
 * `0` as equal to any text, and others ignore the letter case of names or trim values.
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
  const found = members.filter((member) => mayBeNamed(member, variable));
  const [only] = found;
  if (!only) return 'no';
  if (found.length > 1 || only.isDisputed || only.name !== name || typeof only.value !== 'string')
    return 'unclear';
  if (only.value === wanted) return 'yes';
  return mayReadAs(only.value, wanted) ? 'unclear' : 'no';
}

/** Charsets in which ASCII characters, and so all members that matter, have the same bytes. */
const KNOWN_CHARSET = /^"?(?:utf-?8|us-ascii|ascii|iso-8859-1)"?$/;

const JSON_TYPE = /^(?:[a-z]+\/json|application\/[a-z0-9.-]+\+json)$/;

/** A `[` or `{` at the start, after an optional byte order mark. Some backends parse such a body as JSON whatever its type. */
const LOOKS_LIKE_JSON = /^(?:\xef\xbb\xbf)?\s*[[{]/;

function membersOfBody(headers: readonly string[], body: Buffer): Members {
  if (body.length === 0) return NO_MEMBERS;
  if (hasCoding(headers)) return unclear('its body has a content coding');
  const types = valuesOf(headers, 'content-type');
  if (types.length > 1) return unclear('it has two content types');
  // The fast path, for almost all requests.
  if (types[0] === 'application/json') return membersOfJson(body);
  const [type = ''] = (types[0] ?? '').toLowerCase().split(';', 1);
  if (types.some(hasUnusualCharset)) return unclear('its body has an unusual charset');
  if (type.trim() === 'application/x-www-form-urlencoded') {
    const text = body.toString('latin1');
    if (LOOKS_LIKE_JSON.test(text)) return unclear('its body is sent as a form and looks like JSON');
    return membersOfFormBody(text);
  }
  if (JSON_TYPE.test(type.trim())) return membersOfJson(body);
  return /^(?:text\/plain)?$/.test(type.trim())
    ? membersOfText(body)
    : unclear('its body is neither JSON nor a form');
}

const hasCoding = (headers: readonly string[]): boolean =>
  valuesOf(headers, 'content-encoding').some((coding) => coding.trim().toLowerCase() !== 'identity');

function hasUnusualCharset(contentType: string): boolean {
  const [, ...parameters] = contentType.toLowerCase().split(';');
  return parameters.some((parameter) => {
    const [name = '', charset = ''] = parameter.split('=');
    return name.trim() === 'charset' && !KNOWN_CHARSET.test(charset.trim());
  });
}

/** Accepts what all JSON parsers read alike: an object in UTF-8 without a byte order mark and without duplicate members. */
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
  if (hasDuplicateMember(text)) return unclear('its body has a duplicate member');
  const object = value as Record<string, unknown>;
  const members = Object.keys(object).map((name) => memberNamed(name, object[name]));
  return { kind: 'members', members };
}

const memberNamed = (name: string, value: unknown): Member => {
  const isPlain = PLAIN_NAME.test(name);
  return { name, isPlain, value, isDisputed: false };
};

/** JSON whose content type does not say so. CGI libraries parse a body without a content type as a form. */
function membersOfText(body: Buffer): Members {
  const inJson = membersOfJson(body);
  if (inJson.kind === 'unclear' || !body.includes('=')) return inJson;
  const inForm = membersOfFormBody(body.toString('latin1'));
  if (inForm.kind === 'unclear') return inForm;
  const disputed = inForm.members.map((member) => ({ ...member, isDisputed: true }));
  return { kind: 'members', members: [...inJson.members, ...disputed] };
}

function membersOfFormBody(text: string): Members {
  if (text.split(/[&;]/, MAX_MEMBERS + 1).length > MAX_MEMBERS)
    return unclear('its body has too many members');
  return { kind: 'members', members: membersOfForm(text) };
}

/** PHP's `$_REQUEST` and ASP's `Request()` find cookies among the members, and other readers do not. */
function membersOfCookies(headers: readonly string[]): Member[] {
  const pairs = valuesOf(headers, 'cookie').flatMap((cookies) => cookies.split(/[;,]/));
  return pairs.map((pair) => ({ ...memberOf(pair.trim()), isDisputed: true }));
}

/** Members of a query or a form. Percent escapes become latin1 characters, because members that matter are ASCII. */
function membersOfForm(text: string): Member[] {
  if (text === '') return [];
  return text.split('&').flatMap((part) => {
    const [whole = '', ...others] = part.split(';');
    const members = others.map((other) => ({ ...memberOf(other), isDisputed: true }));
    // Parsers that split at the semicolon and those that do not find different values for the first member.
    const isDisputed = others.length > 0 || ASP_ESCAPE.test(whole);
    return [{ ...memberOf(whole), isDisputed }, ...members];
  });
}

function memberOf(part: string): Omit<Member, 'isDisputed'> {
  const sign = part.indexOf('=');
  const name = decoded(sign < 0 ? part : part.slice(0, sign));
  return { name, isPlain: PLAIN_NAME.test(name), value: sign < 0 ? '' : decoded(part.slice(sign + 1)) };
}

/** Classic ASP and ASP.NET decode this escape; other parsers do not. */
const ASP_ESCAPE = /%u[0-9a-f]{4}/i;

const decoded = (text: string): string =>
  text
    .replaceAll('+', ' ')
    .replace(/%(?:([0-9a-f]{2})|u([0-9a-f]{4}))/gi, (_, byte: string | undefined, unit: string) =>
      String.fromCharCode(Number.parseInt(byte ?? unit, 16)),
    );

const PLAIN_NAME = /^[\w-]*$/;
const PRINTABLE = /^[\x21-\x7e]*$/;

/**
 * The variable that PHP makes of a member's name: it removes leading spaces, cuts the name at a NUL or a bracket, and
 * replaces dots and spaces with underscores.
 */
function variableName(name: string): string {
  if (PLAIN_NAME.test(name)) return name;
  const [upToNul = ''] = name.split('\0', 1);
  const [upToBracket = ''] = upToNul.trim().split('[', 1);
  return upToBracket.trim().replaceAll(/[. ]/g, '_');
}

/** Whether some parser finds the member under this name. PHP also replaces an unclosed bracket with an underscore. */
function mayBeNamed({ name, isPlain }: Member, variable: string): boolean {
  if (isPlain) return isSameWord(name, variable);
  if (mayReadAs(variableName(name), variable)) return true;
  return name.includes('[') && mayReadAs(variableName(name.replace('[', '_')), variable);
}

const isSameWord = (text: string, word: string): boolean =>
  text.length === word.length && text.toLowerCase() === word.toLowerCase();

/**
 * NFKC leaves at least an eighth of a text's UTF-16 units. So a text more than eight times as long as the word cannot become
 * the word. Such a text is not normalized, because ICU takes quadratic time for some long texts.
 */
const MAX_SHRINKING = 8;

/** Whether a lenient reader could take a text for this word: it ignores case, outer spaces and NULs, or stops at a NUL. */
function mayReadAs(text: string, word: string): boolean {
  if (PRINTABLE.test(text)) return isSameWord(text, word);
  const [upToNul = ''] = text.split('\0', 1);
  const trimmed = text.replaceAll('\0', ' ').trim();
  // NFKC turns wide and decorated letters into ASCII letters.
  return [upToNul.trim(), trimmed].some(
    (reading) =>
      reading.length <= MAX_SHRINKING * word.length &&
      reading.normalize('NFKC').toLowerCase() === word.toLowerCase(),
  );
}
