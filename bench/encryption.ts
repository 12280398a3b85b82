/**
 * What encryption of stored responses costs: `node bench/encryption.ts`. A payout encrypts its response once, and a replay
 * decrypts it once. Prints a Markdown table of processor time. It takes some seconds.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { scopeOf } from '../src/idempotency/fingerprint.ts';
import type { RecordHead } from '../src/idempotency/store.ts';
import { ResponseCipher } from '../src/idempotency/stores/response-cipher.ts';
import type { Completion } from '../src/kernel/exchange.ts';

const ROUNDS = 15;
const PER_ROUND = 4000;
const HEADERS = [
  ...['Content-Type', 'application/json; charset=utf-8', 'Date', 'Sun, 22 Nov 2026 15:47:07 GMT'],
  ...['X-Request-Id', randomUUID()],
];

/** Median over rounds, in microseconds of processor time per call. */
function cpuUs(call: () => void): number {
  const rounds = Array.from({ length: ROUNDS }, () => {
    const before = process.cpuUsage();
    for (let i = 0; i < PER_ROUND; i++) call();
    const { user, system } = process.cpuUsage(before);
    return (user + system) / PER_ROUND;
  });
  return rounds.toSorted((a, b) => a - b)[ROUNDS >> 1] as number;
}

const encryption = { keys: [{ id: '2026-11', secret: randomBytes(32).toString('hex') }] };
const [on, off] = [new ResponseCipher(encryption), new ResponseCipher()];
const scope = scopeOf('M-1', randomUUID());
const head = { state: 'completed', encryptionKeyId: '2026-11' } as RecordHead;

process.stdout.write('| body | encrypt, µs | decrypt, µs | off, µs |\n|---|---|---|---|\n');
for (const bytes of [300, 4096, 65_536]) {
  const completion: Completion = {
    kind: 'response',
    response: { status: 201, headers: HEADERS, body: Buffer.alloc(bytes, 'x') },
  };
  const sealed = { ...head, completion: on.seal(scope, completion) };
  const times = [
    cpuUs(() => on.seal(scope, completion)),
    cpuUs(() => on.open(scope, sealed)),
    cpuUs(() => off.open(scope, { ...head, completion: off.seal(scope, completion) })),
  ];
  process.stdout.write(`| ${bytes} bytes | ${times.map((us) => us.toFixed(2)).join(' | ')} |\n`);
}
