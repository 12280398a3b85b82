// What every gateway does with a request: it looks up the digest of the secret key, writes one line of the log, and counts and times the
// request by method and status. With the libraries that oncegate uses, as their documentation says.
// Follows pino's documentation, section "pino.destination", and prom-client's Readme, sections "Counter" and "Histogram".
import { createHash, randomUUID } from 'node:crypto';
import { pino } from 'pino';
import { Counter, Histogram } from 'prom-client';
import { secret } from './environment.mjs';

const digestOf = (text) => createHash('sha256').update(text).digest('base64');
const merchants = new Map([[digestOf(`Bearer ${secret}`), 'M-1000']]);
const log = pino(pino.destination({ minLength: 4096, sync: false }));
const requests = new Counter({ name: 'requests_total', help: 'Requests', labelNames: ['method', 'status'] });
const seconds = new Histogram({ name: 'request_seconds', help: 'Duration', labelNames: ['method'] });

/** Middleware of Express. */
export function logged(request, response, next) {
  const merchant = merchants.get(digestOf(request.headers.authorization ?? ''));
  if (merchant === undefined) return response.sendStatus(401);
  const [startedMs, requestId] = [performance.now(), randomUUID()];
  const { method, url } = request;
  response.on('finish', () => {
    const [status, durationMs] = [response.statusCode, performance.now() - startedMs];
    requests.inc({ method, status });
    seconds.observe({ method }, durationMs / 1000);
    log.info({ requestId, merchant, method, url, status, durationMs }, 'request');
  });
  next();
}
