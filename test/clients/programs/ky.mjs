import ky from 'ky';
import { makeCalls, PAYOUT, payoutHeaders, payoutUrl } from './lib/calls.mjs';

await makeCalls(
  (call) =>
    ky
      .post(payoutUrl(call), {
        json: PAYOUT,
        headers: payoutHeaders(call),
        timeout: call.timeoutMs,
        // By default ky repeats no POST, and no request that timed out.
        retry: { limit: 3, methods: ['post'], retryOnTimeout: true },
      })
      .json(),
  ({ response, data }) => ({ status: response?.status, code: data?.error?.code }),
);
