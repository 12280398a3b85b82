import { z } from 'zod';

const isRedisUrl = (text: string) =>
  URL.canParse(text) && /^rediss?:$/.test(new URL(text).protocol) && new URL(text).hostname !== '';

export const redisUrl = z
  .string()
  .refine(isRedisUrl, 'must be an address such as redis://redis.internal:6379 (rediss:// for TLS)');

const isAddress = (text: string) => isRedisUrl(text) && /^rediss?:\/\/[^@/]+\/?$/.test(text);
const redisAddress = z
  .string()
  .refine(
    isAddress,
    'must be an address such as redis://redis.internal:6379 (rediss:// for TLS); set username and password as separate options',
  );

/** `tls` as a section. It holds for every connection to Redis that uses TLS, those to `lock.nodes` included. */
const redisTls = z
  .strictObject({
    /** The certificate authorities that Redis' certificate may come from, in place of the well-known ones. */
    ca: z.string().min(1).optional(),
    /** The gateway's own certificate for a Redis that asks for one, with its intermediates. */
    cert: z.string().min(1).optional(),
    /** The private key of `cert`. */
    key: z.string().min(1).optional(),
    /** The name that the certificate of each server must have. Default: its host. */
    serverName: z.string().min(1).optional(),
  })
  .refine(({ cert, key }) => (cert === undefined) === (key === undefined), 'needs cert and key together');

/** The options that every section has which names a Redis. {@link checkLocation} completes them. */
export const redisOptions = {
  /** One server: redis:// or rediss://, with its credentials. */
  url: redisUrl.optional(),
  /** In place of `url`: sentinels, and the name of their master. rediss:// is TLS to the sentinel itself; `tls` is for the data nodes. */
  sentinels: z.strictObject({ name: z.string().min(1), nodes: z.array(redisAddress).min(1) }).optional(),
  /** In place of `url`: some nodes of a cluster. */
  cluster: z.array(redisAddress).min(1).optional(),
  /** Credentials of the data nodes behind sentinels or in a cluster. */
  username: z.string().min(1).optional(),
  password: z.string().min(1).optional(),
  /** TLS to the data nodes behind sentinels or in a cluster: true. With a section, which also goes with a rediss:// `url`: paths of PEM files. */
  tls: z.union([z.boolean(), redisTls]).optional(),
  /** Prefix of every Redis key. */
  prefix: z
    .string()
    .regex(/^[\w.:-]{1,64}$/, 'must be 1 to 64 letters, digits, and _ . : -')
    .default('oncegate'),
  /** How long to wait for Redis at the start. */
  connectTimeoutMs: z.number().int().min(100).max(120_000).default(5000),
};

/** Where a Redis is: exactly one of `url`, `sentinels` and `cluster` is set. */
export type RedisLocation = Pick<
  z.output<z.ZodObject<typeof redisOptions>>,
  'url' | 'sentinels' | 'cluster' | 'username' | 'password' | 'tls'
>;

/** For `superRefine`: exactly one location, and no credentials beside a `url`, which contains its own. */
export function checkLocation(
  { url, sentinels, cluster, username, password, tls }: RedisLocation,
  context: z.core.$RefinementCtx,
): void {
  const mistake = (option: string, message: string) =>
    context.addIssue({ code: 'custom', path: [option], message });
  const given = [url, sentinels, cluster].filter((location) => location !== undefined).length;
  if (given !== 1) mistake('url', 'needs exactly one of url, sentinels and cluster');
  const hasFiles = typeof tls === 'object';
  if (url !== undefined && (username ?? password ?? (hasFiles ? undefined : tls)) !== undefined)
    mistake(
      'url',
      'already contains username, password and TLS (rediss://), so they must not be set separately',
    );
  if (hasFiles && url?.startsWith('redis:'))
    mistake('url', 'must begin with rediss:// when tls is a section');
  const secure = cluster?.filter((node) => node.startsWith('rediss:')).length;
  if (cluster && secure !== 0 && (secure !== cluster.length || tls === false))
    mistake('cluster', 'must begin with rediss:// for all nodes of the cluster, or for none');
}
