// As payout.mjs, with the retry library ky (npm install ky@2): node payout-ky.mjs REFERENCE AMOUNT BANK_CODE ACCOUNT_NUMBER
import { randomUUID } from 'node:crypto';
import { existsSync, fsyncSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { link } from 'node:fs/promises';
import ky from 'ky';

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
// An answer of the gateway itself says whether to send the same request again. None of them says that the payout failed.
const isProblem = ({ response }) => response?.headers.get('content-type') === 'application/problem+json';
const isFinal = (error) => (isProblem(error) ? error.data?.error?.retry !== 'same_key' : error.response && error.response.status !== 429);
// By default ky sends no POST again, and not after a timeout. `undefined` means: wait for Retry-After, or for `delay`.
const shouldRetry = ({ error }) => (isFinal(error) ? false : undefined);
const delay = (attempt) => 1000 * 2 ** (attempt - 1);
const retry = { limit: 4, methods: ['post'], retryOnTimeout: true, statusCodes: STATUSES, afterStatusCodes: STATUSES, delay, shouldRetry };
try {
  // The gateway may forget a key 24 hours after its first use. To send it again then would be a second payout.
  const signal = AbortSignal.timeout(at + 23 * 3600_000 - Date.now()); // It throws if that time is over.
  console.log(await ky.post(`${API_URL}/v1/index.php`, { body, headers, redirect: 'manual', timeout: 30_000, retry, signal }).text());
} catch (error) {
  const { status = 500 } = error.response ?? {};
  const isRefused = status >= 400 && status < 500 && status !== 429 && !isProblem(error);
  if (error.data) console.log(error.data);
  if (!isRefused) console.error(`unknown: do not pay by other means, and contact us. Key: ${key}`);
  process.exitCode = isRefused ? 1 : 2;
}
