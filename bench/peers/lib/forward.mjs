// What the peers built on undici share: a request passed on with `dispatch`, its answer whole in memory.
// Follows undici's own documentation, which comes in its package: docs/docs/api/Pool.md ("new Pool": 128
// connections, no pipelining) and docs/docs/api/Dispatcher.md ("dispatcher.dispatch").
import { Pool } from 'undici';
import { backendUrl } from './environment.mjs';

const pool = new Pool(backendUrl, { connections: 128, pipelining: 1 });

/** Hop-by-hop header fields, and those that undici writes itself: it rejects some of them in a request. */
const OWN_TO_THE_HOP = new Set([
  ...['connection', 'content-length', 'expect', 'host', 'keep-alive', 'proxy-connection', 'te'],
  ...['trailer', 'transfer-encoding', 'upgrade'],
]);

function requestHeaders({ rawHeaders }) {
  const headers = [];
  for (let i = 0; i < rawHeaders.length; i += 2)
    if (!OWN_TO_THE_HOP.has(rawHeaders[i].toLowerCase())) headers.push(rawHeaders[i], rawHeaders[i + 1]);
  return headers;
}

/** Calls `done` with the bytes of a body, or with null if the request has none. */
export function readBody(request, done) {
  if (!request.headers['content-length'] && !request.headers['transfer-encoding']) return done(null);
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => done(chunks.length === 1 ? chunks[0] : Buffer.concat(chunks)));
}

/** Collects one answer. */
class Exchange {
  #done;
  #status = 0;
  #headers = {};
  #chunks = [];

  constructor(done) {
    this.#done = done;
  }

  onRequestStart() {}

  onResponseStart(_controller, status, headers) {
    this.#status = status;
    delete headers.connection;
    delete headers['keep-alive'];
    delete headers['transfer-encoding'];
    this.#headers = headers;
  }

  onResponseData(_controller, chunk) {
    this.#chunks.push(chunk);
  }

  onResponseEnd() {
    const body = this.#chunks.length === 1 ? this.#chunks[0] : Buffer.concat(this.#chunks);
    this.#done({ status: this.#status, headers: this.#headers, body });
  }

  onResponseError() {
    const body = Buffer.from('{"error":"bad gateway"}');
    this.#done({ status: 502, headers: { 'content-type': 'application/json' }, body });
  }
}

/** Sends a request with this body. `done` gets status, headers and body, or with 502 on failure. */
export function forward(request, body, done) {
  const headers = requestHeaders(request);
  pool.dispatch({ method: request.method, path: request.url, headers, body }, new Exchange(done));
}

/** The same as a promise. */
export const forwarded = (request, body) => new Promise((resolve) => forward(request, body, resolve));

/** Headers and body leave in one write. */
export function answer(response, { status, headers, body }) {
  response.writeHead(status, headers);
  response.end(body);
}

/** A request handler that passes on every request. */
export function passOn(request, response) {
  readBody(request, (body) => forward(request, body, (received) => answer(response, received)));
}
