import { BlockList, isIP } from 'node:net';
import { z } from 'zod';

/** Section `admin`: health, readiness, metrics and records, on a separate port. */
export const adminOptions = z
  .strictObject({
    host: z.string().min(1).default('127.0.0.1'),
    /** Not 9090, the port of Prometheus, which often runs on the same machine. */
    port: z.preprocess(digitsToNumber, z.number().int().min(0).max(65_535)).default(8081),
    /**
     * Bearer token for /metrics and /records, at least 16 characters. Without one, /records is off and `host` must be a
     * loopback address.
     */
    token: z.string().min(16).optional(),
  })
  .superRefine(({ host, token }, context) => {
    if (token !== undefined || isLoopback(host)) return;
    const message = `is required when admin.host is not a loopback address, because everyone who reaches ${host} could read the metrics`;
    context.addIssue({ code: 'custom', path: ['token'], message });
  });

const loopback = new BlockList();
loopback.addSubnet('127.0.0.0', 8);
loopback.addAddress('::1', 'ipv6');

function isLoopback(host: string): boolean {
  const family = isIP(host);
  if (family === 0) return host.toLowerCase() === 'localhost';
  return loopback.check(host, family === 6 ? 'ipv6' : 'ipv4');
}

/** For numbers that may come from the environment, whose values are always text. */
export function digitsToNumber(value: unknown): unknown {
  return typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value;
}
