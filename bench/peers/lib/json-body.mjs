// What the idempotency libraries need before them: the parsed body, which they compare, in `body`. The bytes
// as they came, which the backend gets, stay in `rawBody`.
// Follows Express's API reference, section "express.json", options `type` and `verify`.
import express from 'express';

export const jsonBody = express.json({
  type: () => true,
  verify: (request, _response, bytes) => {
    request.rawBody = bytes;
  },
});
