import { SquareClient } from 'square';
import { faultHeader, makeCalls, SECRET } from './lib/calls.mjs';

await makeCalls(
  (call) => {
    const client = new SquareClient({ token: SECRET, baseUrl: call.url });
    const amountMoney = { amount: 1000n, currency: 'USD' };
    return client.payments.create(
      { sourceId: 'cnon:card-nonce-ok', idempotencyKey: call.key, amountMoney },
      {
        // The SDK sends its own key in the body.
        headers: { 'Idempotency-Key': call.key, ...faultHeader(call) },
        timeoutInSeconds: call.timeoutMs / 1000,
        maxRetries: 3,
      },
    );
  },
  ({ statusCode, body }) => ({ status: statusCode, code: body?.error?.code }),
);
