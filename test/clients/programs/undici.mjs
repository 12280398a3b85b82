import { Agent, RetryAgent, request } from 'undici';
import { makeCalls, PAYOUT, payoutHeaders, payoutUrl } from './lib/calls.mjs';

// By default RetryAgent repeats no POST, and no request that timed out.
const retries = {
  maxRetries: 3,
  methods: ['POST'],
  errorCodes: ['ECONNRESET', 'ECONNREFUSED', 'EPIPE', 'UND_ERR_SOCKET', 'UND_ERR_HEADERS_TIMEOUT'],
};

await makeCalls(
  async (call) => {
    const { statusCode, body } = await request(payoutUrl(call), {
      method: 'POST',
      headers: { ...payoutHeaders(call), 'Content-Type': 'application/json' },
      body: JSON.stringify(PAYOUT),
      dispatcher: new RetryAgent(new Agent({ headersTimeout: call.timeoutMs }), retries),
    });
    const json = await body.json();
    // RetryAgent throws only for the statuses that it repeats.
    if (statusCode >= 400) throw { name: 'no error', statusCode, answer: json };
    return json;
  },
  ({ statusCode, answer }) => ({ status: statusCode, code: answer?.error?.code }),
);
