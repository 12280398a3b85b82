import { z } from 'zod';

/** Section `log`. */
export const logOptions = z.strictObject({
  /** `info` includes one line for each request. */
  level: z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'silent']).default('info'),
});
