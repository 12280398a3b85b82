// As payout.mjs, with the retry library ky (npm install ky@2): node payout-ky.mjs REFERENCE AMOUNT BANK_CODE ACCOUNT_NUMBER
import { randomUUID } from 'node:crypto';
import { existsSync, fsyncSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { link } from 'node:fs/promises';
import ky from 'ky';

const AGAIN = /request_in_flight|store_unavailable|upstream_unreachable|overloaded|shutting_down|rate_limited|request_timeout|internal_error/;
const STATUSES = [408, 409, 429, 500, 502, 503];
const { API_URL, SECRET_KEY } = process.env;
const [reference, amount, bank_code, account_number] = process.argv.slice(2);
const file = `payout-${reference}.json`;
// Key and body are on the disk before they are sent. A later run sends the same ones again.
if (!existsSync(file)) {
  const body = JSON.stringify({ action: 'withdraw', amount: Number(amount), bank_code, account_number });
  const draft = `${file}.${randomUUID()}`; // Containers that share a folder can have the same process id.
  writeFileSync(draft, JSON.stringify({ key: randomUUID(), body, at: Date.now() }), { flush: true });
  await link(draft, file).catch(() => {}); // Another run was first: its key counts.
  fsyncSync(openSync('.'));
}
const { key, body, at } = JSON.parse(readFileSync(file, 'utf8'));
const headers = { Authorization: `Bearer ${SECRET_KEY}`, 'Content-Type': 'application/json', 'x-service-idempotency': key };
const codeOf = (error) => error.data?.error?.code ?? '';
// By default ky sends no POST again, and not after a timeout. `undefined` means: wait for Retry-After, or for `delay`.
const shouldRetry = ({ error }) => (error.response && error.response.status !== 429 && !AGAIN.test(codeOf(error)) ? false : undefined);
const delay = (attempt) => 1000 * 2 ** (attempt - 1);
const retry = { limit: 4, methods: ['post'], retryOnTimeout: true, statusCodes: STATUSES, afterStatusCodes: STATUSES, delay, shouldRetry };
try {
  // The gateway may forget a key 24 hours after its first use. To send it again then would be a second payout.
  const signal = AbortSignal.timeout(at + 23 * 3600_000 - Date.now()); // It throws if that time is over.
  console.log(await ky.post(`${API_URL}/v1/index.php`, { body, headers, timeout: 30_000, retry, signal }).text());
} catch (error) {
  const { status = 500, headers } = error.response ?? {};
  const isProblem = headers?.get('content-type') === 'application/problem+json';
  // outcome_unknown, response_not_stored, and all others of the gateway say nothing of an earlier request with the key.
  const isRefused = status < 500 && status !== 429 && !isProblem;
  if (error.data) console.log(error.data);
  if (!isRefused) console.error(`unknown: do not pay by other means, and contact us. Key: ${key}`);
  process.exitCode = isRefused ? 1 : 2;
}
