// Express with http-proxy-middleware, and nothing else.
// Follows http-proxy-middleware's README, section "Express Server Example". Its agent keeps connections to
// the backend alive by default (httpxy's README, section "Options": `agent`).
import express from 'express';
import { createProxyMiddleware } from 'http-proxy-middleware';
import { backendUrl, host, port } from './lib/environment.mjs';

const app = express();

app.use(createProxyMiddleware({ target: backendUrl, changeOrigin: true }));

app.listen(port, host);
