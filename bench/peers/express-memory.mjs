// Express answering from memory: what a replay costs at least where Express is the server. It asks no store
// and checks nothing: a known key gets its answer, whoever asks and whatever the body is.
// Follows Express's API reference, section "app.post", and undici's as told in lib/forward.mjs.
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
