import { BlockList, isIP } from 'node:net';
import * as z from 'zod';
import { wholeNumber } from '../requests/common-options.ts';

/** Names that the audit trail has for others: `admin.token`, and lookups. */
const TAKEN = ['admin', 'lookup'];

/** `admin.tokens`: who may log in to the console, and scrape. */
const ownTokenOptions = z.strictObject({
  /** The audit trail and the log have this name for what is done with the token. */
  name: z
    .string()
    .regex(
      /^[A-Za-z0-9][A-Za-z0-9._@ -]{0,31}$/,
      'must have 1 to 32 letters, digits, spaces and ._@-, and begin with a letter or digit',
    )
    .refine((name) => !TAKEN.includes(name.toLowerCase()), `must not be ${TAKEN.join(' or ')}`),
  /** At least 16 characters. */
  token: z.string().min(16),
  /** What it permits beside reading. `resolve`: resolve keys in doubt. `bodies`: see stored responses completely. */
  may: z.array(z.enum(['resolve', 'bodies'])).default([]),
  /** `metrics`: for a Prometheus. It reads /metrics, and nothing else. */
  only: z.literal('metrics').optional(),
});

/** A name of a host, without a port. Addresses need not be listed. */
const HOST_NAME = /^[a-z0-9](?:[a-z0-9.-]{0,252}[a-z0-9])?$/i;

/** Section `admin`: health, readiness, metrics, records and the console, on a separate port. */
export const adminOptions = z
  .strictObject({
    host: z.string().min(1).default('127.0.0.1'),
    /** Not 9090, the port of Prometheus, which often runs on the same machine. */
    port: z.preprocess(digitsToNumber, wholeNumber(0, 65_535)).default(8081),
    /**
     * Bearer token for /metrics and /records, at least 16 characters. Without one, /records is off and `host` must be a
     * loopback address.
     */
    token: z.string().min(16).optional(),
    /** The page for people at /console/. It needs a token to log in with: without any token it is off. */
    console: z.boolean().default(true),
    /** Further tokens, for the console and /metrics: one for each person, team or program. `token` also logs in, and may read and resolve. */
    tokens: z.array(ownTokenOptions).max(100).default([]),
    /**
     * Names under which browsers may reach the console. Addresses, localhost and `host` need not be listed. If there are any,
     * and on a loopback address in any case, requests for other names are refused.
     */
    hosts: z
      .array(z.string().regex(HOST_NAME, 'must be the name of a host, without a port'))
      .max(100)
      .default([]),
  })
  .superRefine(({ host, token, tokens }, context) => {
    const names = new Set<string>();
    // The audit trail must be able to tell who it was.
    const known = new Set([token]);
    for (const [i, { name, token: own, may, only }] of tokens.entries()) {
      if (only && may.length > 0)
        context.addIssue({
          code: 'custom',
          path: ['tokens', i, 'may'],
          message: 'contradicts only: metrics',
        });
      if (names.has(name))
        context.addIssue({ code: 'custom', path: ['tokens', i, 'name'], message: 'is used twice' });
      if (known.has(own))
        context.addIssue({ code: 'custom', path: ['tokens', i, 'token'], message: 'is used twice' });
      names.add(name);
      known.add(own);
    }
    if (token !== undefined || isLoopback(host)) return;
    const message = `is required when admin.host is not a loopback address, because everyone who reaches ${host} could read the metrics`;
    context.addIssue({ code: 'custom', path: ['token'], message });
  });

export type AdminOptions = z.output<typeof adminOptions>;

const loopback = new BlockList();
loopback.addSubnet('127.0.0.0', 8);
loopback.addAddress('::1', 'ipv6');

/** Whether only this machine can reach the address. */
export function isLoopback(host: string): boolean {
  const family = isIP(host);
  if (family === 0) return host.toLowerCase() === 'localhost';
  return loopback.check(host, family === 6 ? 'ipv6' : 'ipv4');
}

/** Reads a number that may come from the environment, whose values are always text. */
export function digitsToNumber(value: unknown): unknown {
  return typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value;
}
