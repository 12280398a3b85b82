import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import { payoutBody } from '../../support/payout.ts';

/** A payout whose answer's head has arrived, and whose body is not read. */
export async function beginToRead(
  url: string,
  { key, fault }: { key?: string; fault: string },
): Promise<IncomingMessage> {
  const request = http.request(new URL('/v1/index.php', url), {
    method: 'POST',
    agent: false,
    headers: {
      Authorization: 'Bearer sk_sandbox_alpha',
      'Content-Type': 'application/json',
      'X-Sandbox-Fault': fault,
      ...(key === undefined ? {} : { 'x-service-idempotency': key }),
    },
  });
  request.end(JSON.stringify(payoutBody()));
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  response.on('error', () => {});
  return response;
}
