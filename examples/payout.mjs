// One payout, at most once, however often this runs: node payout.mjs REFERENCE AMOUNT BANK_CODE ACCOUNT_NUMBER
// Environment: API_URL, SECRET_KEY. Exit codes: 0 paid, 1 refused by the backend, 2 unknown: run it again later with the same arguments.
import { randomUUID } from 'node:crypto';
import { existsSync, fsyncSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { link } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';

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
for (const waitS of [1, 2, 4, 8, 0]) {
  if (!(Date.now() - at < 23 * 3600_000)) break; // The gateway may forget a key 24 hours after its first use. To send it again then would be a second payout.
  let retryAfterS = 0;
  try {
    const answer = await fetch(`${API_URL}/v1/index.php`, { method: 'POST', redirect: 'manual', headers, body, signal: AbortSignal.timeout(30_000) });
    const text = await answer.text();
    // An answer of the gateway itself says whether to send the same request again. None of them says that the payout failed.
    const isProblem = answer.headers.get('content-type') === 'application/problem+json';
    const again = isProblem ? JSON.parse(text).error.retry === 'same_key' : answer.status === 429;
    if (!again) console.log(text);
    if (!again && (isProblem || answer.status >= 500 || (answer.status >= 300 && answer.status < 400))) break;
    if (!again) process.exit(Number(!answer.ok));
    retryAfterS = Number(answer.headers.get('retry-after')) || 0;
  } catch {} // The request got no answer, which says nothing about the payout.
  await sleep(Math.max(waitS, retryAfterS) * 1000);
}
console.error(`unknown: do not pay by other means, and contact us. Key: ${key}`);
process.exit(2);
