// Node's own HTTP server with undici's `dispatch`, and nothing else: the upper limit of what Node can do.
// Follows the documentation of Node's module http, section "http.createServer", and undici's documentation as named in
// lib/forward.mjs.
import { createServer } from 'node:http';
import { host, port } from './lib/environment.mjs';
import { passOn } from './lib/forward.mjs';

createServer(passOn).listen(port, host);
