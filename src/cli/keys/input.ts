import { z } from 'zod';
import { isSecret } from '../../auth/authorization-header.ts';
import { durationMs } from '../../kernel/duration.ts';
import { Exit } from '../arguments.ts';

const MAX_INPUT_BYTES = 4096;

/** A secret key from standard input: one line. A newline after it is not part of the key. */
export async function readSecret(): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > MAX_INPUT_BYTES) throw new Exit('standard input is too long for a secret key', 64);
    chunks.push(chunk);
  }
  const secret = Buffer.concat(chunks)
    .toString('utf8')
    .replace(/\r?\n$/, '');
  if (secret === '') throw new Exit('standard input has no secret key', 64);
  if (!isSecret(secret))
    throw new Exit('the secret key cannot be sent as a bearer token of at most 512 characters', 1);
  return secret;
}

const isoTime = z.iso.datetime({ offset: true });

/** An ISO 8601 time with a zone, or a duration from now, as an ISO 8601 time. @throws {Exit} 64 */
export function timeOf(text: string, option: string, nowMs: number): string {
  const fromNowMs = durationMs(text);
  const ms = fromNowMs === undefined ? parsedTime(text) : nowMs + fromNowMs;
  if (ms >= 0 && ms <= LATEST_MS) return new Date(ms).toISOString();
  throw new Exit(
    `--${option} takes a time such as 2027-01-31T00:00:00Z, or a duration such as 30d or 24h`,
    64,
  );
}

const LATEST_MS = Date.UTC(9999, 11, 31);

const parsedTime = (text: string): number =>
  isoTime.safeParse(text).success ? Date.parse(text) : Number.NaN;
