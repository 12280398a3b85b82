// Express answering from memory: the least that a replay can cost under Express. It asks no store and checks
// nothing: a known key gets its answer, for every caller and every body.
// Follows Express's API reference, section "app.post", and undici's documentation as named in lib/forward.mjs.
import express from 'express';
import { host, port } from './lib/environment.mjs';
import { answer, forward, readBody } from './lib/forward.mjs';

const answers = new Map();

const app = express();

app.post('/v1/index.php', (request, response, next) => {
  const known = answers.get(request.headers['x-service-idempotency']);
  if (known) answer(response, known);
  else next();
});

app.use((request, response) => {
  const key = request.method === 'POST' ? request.headers['x-service-idempotency'] : undefined;
  readBody(request, (body) =>
    forward(request, body, (received) => {
      if (key) answers.set(key, received);
      answer(response, received);
    }),
  );
});

app.listen(port, host);
