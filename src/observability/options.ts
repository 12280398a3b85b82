import { z } from 'zod';

/** Section `log`. */
export const logOptions = z.strictObject({
  /** One JSON line for each request is `info`. */
  level: z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'silent']).default('info'),
});
