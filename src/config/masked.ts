import { stringify } from 'yaml';
import { withoutSecrets } from './explain.ts';
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
