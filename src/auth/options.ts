import { z } from 'zod';

/** `source: file`: a YAML file, which is read again when it changes. */
const fileKeys = z.strictObject({
  source: z.literal('file'),
  /** Path of the key file, absolute or relative to the working directory. Default ./keys.yaml. */
  path: z.string().min(1).default('./keys.yaml'),
});

/** Where secret keys are looked up. */
const keySource = z.discriminatedUnion('source', [fileKeys], { error: 'source must be one of: file' });

/** Section `auth`: the secret keys, and the Authorization header that the backend gets. */
export const authOptions = z
  .strictObject({
    /**
     * The HMAC key for secret keys, at least 16 characters. Take it from the environment (`${ONCEGATE_PEPPER}`).
     * Every `hash` in a key file depends on it: with another pepper, all hashed keys are unknown. No default.
     */
    pepper: z.string().min(16, 'must have at least 16 characters').optional(),
    /** The realm in `WWW-Authenticate`: 1 to 128 printable ASCII characters without quotes and backslashes. Default oncegate. */
    realm: z
      .string()
      .regex(
        /^[\x20\x21\x23-\x5b\x5d-\x7e]{1,128}$/,
        'must be printable ASCII without quotes and backslashes',
      )
      .default('oncegate'),
    /** Default: the file ./keys.yaml. */
    keys: keySource.default({ source: 'file', path: './keys.yaml' }),
    /** Whether the backend gets the merchant's Authorization header, none, or another one (`replaceWith`). Default keep. */
    forward: z.enum(['keep', 'strip', 'replace']).default('keep'),
    /** Required with `forward: replace` and only then allowed: the whole value, such as `Bearer ${BACKEND_KEY}`. */
    replaceWith: z
      .string()
      .regex(/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/, 'must be printable ASCII')
      .optional(),
  })
  .superRefine((auth, context) => {
    const replaces = auth.forward === 'replace';
    if (replaces === (auth.replaceWith !== undefined)) return;
    const message = replaces ? 'is required with forward: replace' : 'is allowed with forward: replace only';
    context.addIssue({ code: 'custom', path: ['replaceWith'], message });
  });

export type AuthOptions = z.infer<typeof authOptions>;
