/** The payment of the interface, for clients that can send any request. */
export const PAYOUT = { action: 'withdraw', amount: 10, bank_code: '058', account_number: '0123456789' };

export const SECRET = 'sk_sandbox_alpha';

/** The header that asks the sandbox for a fault, with every attempt. */
export const faultHeader = ({ fault }) => (fault ? { 'X-Sandbox-Fault': fault } : {});

/** The address and the headers for a client that sends PAYOUT. */
export const payoutUrl = ({ url }) => `${url}/v1/index.php`;
export const payoutHeaders = (call) => ({
  Authorization: `Bearer ${SECRET}`,
  'x-service-idempotency': call.key,
  ...faultHeader(call),
});

/**
 * Makes the calls that the process got as its argument, all at once, and prints what the client reported for each:
 * `{ kind: 'result', transactionId }` or `{ kind: 'error', error, status, code }`.
 *
 * @param pay makes one call `{ url, key, fault, timeoutMs }` and resolves to the answer's body, parsed
 * @param explain reads the status and the error code of the body from the client's error
 */
export async function makeCalls(pay, explain) {
  const calls = JSON.parse(process.argv[2]);
  const reports = await Promise.all(
    calls.map(async (call) => {
      try {
        const { data } = await pay(call);
        return { kind: 'result', transactionId: data?.transaction_id };
      } catch (error) {
        return { kind: 'error', error: error.name, ...explain(error) };
      }
    }),
  );
  // Some clients keep connections open, which would keep the process running.
  process.stdout.write(JSON.stringify(reports), () => process.exit());
}
