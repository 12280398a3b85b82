// Node's own HTTP server with http-proxy-3.
// Follows http-proxy-3's README, sections "Setup a stand-alone proxy server with custom server logic",
// "Listening for proxy events" and "Options": without `agent` it opens a connection to the backend for every
// request.
import { Agent, createServer } from 'node:http';
import { createProxyServer } from 'http-proxy-3';
import { backendUrl, host, port } from './lib/environment.mjs';

const proxy = createProxyServer({ target: backendUrl, agent: new Agent({ keepAlive: true }) });

proxy.on('error', (_error, _request, response) => {
  response.writeHead(502);
  response.end();
});

createServer((request, response) => {
  proxy.web(request, response);
}).listen(port, host);
