// Node's own HTTP server with undici's `dispatch`, and nothing else: what this runtime can do at most.
// Follows the documentation of Node's module http, section "http.createServer", and undici's as told in
// lib/forward.mjs.
import { createServer } from 'node:http';
import { host, port } from './lib/environment.mjs';
import { passOn } from './lib/forward.mjs';

createServer(passOn).listen(port, host);
