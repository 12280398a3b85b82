// Express with undici's `dispatch`: what Express costs over undici.mjs.
// Follows Express's API reference, section "app.use", and undici's documentation as named in lib/forward.mjs.
import express from 'express';
import { host, port } from './lib/environment.mjs';
import { passOn } from './lib/forward.mjs';

const app = express();

app.use(passOn);

app.listen(port, host);
