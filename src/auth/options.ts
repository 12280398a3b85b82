import { z } from 'zod';

/** `source: file`: a YAML file, read again whenever it changes. */
const fileKeys = z.strictObject({
  source: z.literal('file'),
  /** Path of the key file, relative to the working directory. Default ./keys.yaml. */
  path: z.string().min(1).default('./keys.yaml'),
});

/** Where secret keys are looked up. */
const keySource = z.discriminatedUnion('source', [fileKeys], { error: 'source must be one of: file' });

/** Section `auth`: who may call, and what the backend sees of it. */
export const authOptions = z
  .strictObject({
    /**
     * The HMAC key for secret keys, at least 16 characters; comes from the environment (`${ONCEGATE_PEPPER}`).
     * Every `hash` in a key file is made with it: another pepper, and no key is known any more. No default.
     */
    pepper: z.string().min(16, 'must have at least 16 characters').optional(),
    /** Names the protected space in `WWW-Authenticate`. Printable ASCII without quotes and backslashes. Default oncegate. */
    realm: z
      .string()
      .regex(
        /^[\x20\x21\x23-\x5b\x5d-\x7e]{1,128}$/,
        'must be printable ASCII without quotes and backslashes',
      )
      .default('oncegate'),
    /** Default: the file ./keys.yaml. */
    keys: keySource.default({ source: 'file', path: './keys.yaml' }),
    /** What becomes of the Authorization header on its way to the backend: kept, left out, or replaced. Default keep. */
    forward: z.enum(['keep', 'strip', 'replace']).default('keep'),
    /** With `forward: replace`, and only then: the whole value of the header, such as `Bearer ${BACKEND_KEY}`. */
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
