// Node's own HTTP server and client, with pipes between them.
// Follows the documentation of Node's module http, sections "Class: http.Agent" and "http.request".
import { Agent, createServer, request as send } from 'node:http';
import { pipeline } from 'node:stream';
import { backendUrl, host, port } from './lib/environment.mjs';

const agent = new Agent({ keepAlive: true });
const { hostname, port: backendPort } = new URL(backendUrl);

/** Hop-by-hop header fields, which belong to one connection and are not passed on. */
function withoutConnection(received) {
  const headers = { ...received };
  delete headers.connection;
  delete headers['keep-alive'];
  return headers;
}

function target({ method, url, headers }) {
  return { agent, hostname, port: backendPort, method, path: url, headers: withoutHost(headers) };
}

function withoutHost(received) {
  const headers = withoutConnection(received);
  delete headers.host;
  return headers;
}

function fail(response) {
  if (!response.headersSent) response.writeHead(502);
  response.end();
}

createServer((request, response) => {
  const upstream = send(target(request), (received) => {
    // The client has disconnected, and pipeline() into a destroyed response throws.
    if (response.destroyed) {
      received.destroy();
      return;
    }
    response.writeHead(received.statusCode, withoutConnection(received.headers));
    pipeline(received, response, () => {});
  });
  upstream.on('error', () => fail(response));
  request.pipe(upstream);
}).listen(port, host);
