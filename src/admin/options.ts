import { z } from 'zod';

/** Section `admin`: health, readiness, metrics and records, on a port of their own. */
export const adminOptions = z.strictObject({
  host: z.string().min(1).default('127.0.0.1'),
  port: z.preprocess(numeric, z.number().int().min(0).max(65_535)).default(9090),
  /**
   * Bearer token for /metrics and /records, at least 16 characters; without one /metrics is open to whoever reaches the
   * port, and /records is off.
   */
  token: z.string().min(16).optional(),
});

/** `${NAME}` is always text. */
function numeric(value: unknown): unknown {
  return typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value;
}
