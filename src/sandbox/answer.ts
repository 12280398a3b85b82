import { gzipSync } from 'node:zlib';
import type { Faults } from './faults.ts';
import { errorEnvelope, jsonReply, type Reply } from './reply.ts';

const RETRY_AFTER = ['Retry-After', '1'];

/** The answer of a backend that breaks down before it has executed; undefined where it does not. */
export function answerBefore(faults: Faults): Reply | undefined {
  if (faults.has('500-before')) return failed(500);
  if (faults.has('503-before')) return failed(503, RETRY_AFTER);
  if (faults.has('429-before')) return failed(429, RETRY_AFTER);
  const status = faults.get('status');
  if (status === undefined) return undefined;
  return status < 400 ? jsonReply(status, { success: true, data: { executed: false } }) : failed(status);
}

/** What the faults make of the answer of a request that was executed. */
export function answerAfter(reply: Reply, faults: Faults): Reply {
  if (faults.has('500-after')) return failed(500);
  if (faults.has('503-after')) return failed(503, RETRY_AFTER);
  return reply;
}

/** Body and headers as the faults want them, whatever the answer says. */
export function dressUp(reply: Reply, faults: Faults, acceptEncoding: string): Reply {
  let dressed = reply;
  const bytes = faults.get('huge');
  if (bytes !== undefined) dressed = padded(dressed, bytes);
  if (faults.has('binary')) dressed = binary(dressed);
  if (faults.has('set-cookie')) dressed = withHeaders(dressed, COOKIES);
  if (faults.has('duplicate-header')) dressed = withHeaders(dressed, ODD_TWINS);
  if (faults.has('gzip-force') || (faults.has('gzip') && takesGzip(acceptEncoding)))
    dressed = gzipped(dressed);
  return dressed;
}

const COOKIES = [
  'Set-Cookie',
  'sandbox_session=one; Path=/; HttpOnly',
  'Set-Cookie',
  'sandbox_theme=two; Path=/',
];
const ODD_TWINS = ['X-SaNdBoX-Note', 'first', 'x-sAnDbOx-nOtE', 'second'];

function failed(status: number, headers: readonly string[] = []): Reply {
  return errorEnvelope(
    status,
    'sandbox_fault',
    `answered ${status} because the request asked for it`,
    headers,
  );
}

function withHeaders(reply: Reply, headers: readonly string[]): Reply {
  return { ...reply, headers: [...reply.headers, ...headers] };
}

function padded(reply: Reply, bytes: number): Reply {
  const json = reply.body.toString();
  const ends = [`${json.slice(0, -1)},"padding":"`, '"}'] as const;
  const padding = bytes - Buffer.byteLength(ends.join(''));
  return { ...reply, body: padding < 0 ? reply.body : Buffer.from(ends.join('x'.repeat(padding))) };
}

function binary(reply: Reply): Reply {
  const headers = ['Content-Type', 'application/octet-stream'];
  return { ...reply, headers, body: Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)) };
}

function gzipped(reply: Reply): Reply {
  const encoded = { ...reply, body: gzipSync(reply.body) };
  return withHeaders(encoded, ['Content-Encoding', 'gzip', 'Vary', 'Accept-Encoding']);
}

function takesGzip(acceptEncoding: string): boolean {
  return acceptEncoding.split(',').some((coding) => {
    const [name = '', ...parameters] = coding.split(';').map((part) => part.trim().toLowerCase());
    return (
      (name === 'gzip' || name === '*') && !parameters.some((parameter) => /^q=0(\.0*)?$/.test(parameter))
    );
  });
}
