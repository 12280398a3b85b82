// Express with undici's `dispatch`, and what every gateway does with a request (lib/logged.mjs).
// Follows Express's API reference, section "app.use", and undici's documentation as named in lib/forward.mjs.
import express from 'express';
import { host, port } from './lib/environment.mjs';
import { passOn } from './lib/forward.mjs';
import { logged } from './lib/logged.mjs';

const app = express();

app.use(logged);
app.use(passOn);

app.listen(port, host);
