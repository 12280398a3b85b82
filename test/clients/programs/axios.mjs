import axios from 'axios';
import axiosRetry, { exponentialDelay, isRetryableError } from 'axios-retry';
import { makeCalls, PAYOUT, payoutHeaders, payoutUrl } from './lib/calls.mjs';

// By default axios-retry repeats no POST that was answered, and no request that timed out.
const retryCondition = (error) => isRetryableError(error) || error.code === 'ECONNABORTED';

await makeCalls(
  async (call) => {
    const client = axios.create({ timeout: call.timeoutMs });
    axiosRetry(client, {
      retries: 3,
      retryCondition,
      retryDelay: exponentialDelay,
      shouldResetTimeout: true,
    });
    const answer = await client.post(payoutUrl(call), PAYOUT, { headers: payoutHeaders(call) });
    return answer.data;
  },
  ({ response }) => ({ status: response?.status, code: response?.data?.error?.code }),
);
