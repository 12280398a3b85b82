import Stripe from 'stripe';
import { faultHeader, makeCalls, SECRET } from './lib/calls.mjs';

await makeCalls(
  (call) => {
    const { hostname: host, port } = new URL(call.url);
    const stripe = new Stripe(SECRET, { host, port, protocol: 'http', telemetry: false });
    const charge = { amount: 1000, currency: 'usd', source: 'tok_visa' };
    return stripe.rawRequest('POST', '/v1/charges', charge, {
      idempotencyKey: call.key,
      additionalHeaders: faultHeader(call),
      timeout: call.timeoutMs,
      maxNetworkRetries: 3,
    });
  },
  ({ type, statusCode, code }) => ({ error: type, status: statusCode, code }),
);
