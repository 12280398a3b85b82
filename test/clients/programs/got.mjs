import got from 'got';
import { makeCalls, PAYOUT, payoutHeaders, payoutUrl } from './lib/calls.mjs';

await makeCalls(
  (call) =>
    got
      .post(payoutUrl(call), {
        json: PAYOUT,
        headers: payoutHeaders(call),
        timeout: { request: call.timeoutMs },
        // By default got repeats no POST.
        retry: { limit: 3, methods: ['POST'] },
      })
      .json(),
  ({ response }) => ({ status: response?.statusCode, code: codeIn(response?.body) }),
);

function codeIn(body) {
  return body && JSON.parse(body).error?.code;
}
