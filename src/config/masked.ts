import { stringify } from 'yaml';
import type { Config } from './schema.ts';

export const MASK = '[secret]';

/** Options whose whole value is a secret. */
const SECRETS = new Set(['token', 'pepper', 'replaceWith', 'password', 'secret']);

/** The configuration as a file would have it, with every secret replaced by {@link MASK}, also the passwords in addresses. */
export function masked(config: Config): unknown {
  const operations = config.operations.map(({ match: { methods, path, where }, ...operation }) => ({
    ...operation,
    match: { method: methods, path, ...(Object.keys(where).length > 0 && { where }) },
  }));
  return maskedValue({ ...config, operations }, '');
}

export const maskedYaml = (config: Config): string => stringify(masked(config), { lineWidth: 0 });

function maskedValue(value: unknown, name: string): unknown {
  if (value === undefined) return undefined;
  if (SECRETS.has(name)) return MASK;
  if (typeof value === 'string') return withoutSecrets(value);
  if (Array.isArray(value)) return value.map((item) => maskedValue(item, ''));
  if (typeof value !== 'object' || value === null) return value;
  const hasSecretHeaders = name === 'lookup' || name === 'tracing';
  return Object.fromEntries(
    Object.entries(value).map(([member, item]) => [
      member,
      hasSecretHeaders && member === 'headers' ? maskedHeaders(item) : maskedValue(item, member),
    ]),
  );
}

const maskedHeaders = (headers: unknown): unknown =>
  typeof headers === 'object' && headers !== null
    ? Object.fromEntries(Object.keys(headers).map((name) => [name, MASK]))
    : headers;

/** A text without the password of an address, and without the values of a query, except for placeholders such as `{key}`. */
function withoutSecrets(text: string): string {
  const shown = text.replace(/([?&][^=&#]*=)(?!\{)[^&#]*/g, '$1masked');
  if (!shown.includes('@') || !URL.canParse(shown)) return shown;
  const url = new URL(shown);
  if (url.password === '') return shown;
  url.password = 'masked';
  return url.href;
}
