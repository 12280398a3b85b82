// The middleware that the idempotency libraries need: it puts the parsed body, which they compare, into `body`.
// The original bytes, which the backend gets, are in `rawBody`.
// Follows Express's API reference, section "express.json", options `type` and `verify`.
import express from 'express';

export const jsonBody = express.json({
  type: () => true,
  verify: (request, _response, bytes) => {
    request.rawBody = bytes;
  },
});
