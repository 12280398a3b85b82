/** Fills stores with settled records, as many as a merchant's day may leave, before a gateway is started on them. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { encodeRecord } from '../src/idempotency/codec.ts';
import type { IdempotencyRecord } from '../src/idempotency/record.ts';
import { bytesOf } from '../src/idempotency/stores/lmdb/entry.ts';
import { openEnvironment } from '../src/idempotency/stores/lmdb/environment.ts';
import { SCOPE_BYTES } from '../src/idempotency/stores/lmdb/keys.ts';
import { Ages, currentBoot } from '../src/idempotency/stores/lmdb/stamp.ts';
import type { Fingerprint, Token } from '../src/kernel/brands.ts';
import { systemClock } from '../src/kernel/clock.ts';

const A_STEP = 20_000;
const RETENTION_MS = 86_400_000;

function settled(): IdempotencyRecord {
  return {
    ...{ state: 'settled', token: randomBytes(16) as Token, fingerprint: randomBytes(32) as Fingerprint },
    ...{ createdAtMs: Date.now(), changedAtMs: Date.now() },
    ...{ merchant: 'M-1000', operation: 'withdraw', key: '00000000-0000-0000-0000-000000000000' },
    settlement: {
      kind: 'response',
      response: {
        status: 200,
        headers: ['Server', 'nginx', 'Content-Type', 'application/json', 'Content-Length', '300'],
        body: Buffer.alloc(300, 'x'),
      },
    },
  };
}

/** Scopes in ascending order, evenly spread as hashes are: the quickest way in, and the fullest pages. */
function* scopes(count: number): Generator<Buffer> {
  const step = 2 ** 48 / count;
  let block = Buffer.alloc(0);
  for (let i = 0; i < count; i++) {
    if (block.length === 0) block = randomBytes(SCOPE_BYTES * A_STEP);
    const scope = block.subarray(0, SCOPE_BYTES);
    block = block.subarray(SCOPE_BYTES);
    scope.writeUIntBE(Math.floor(i * step), 0, 6);
    yield scope;
  }
}

export async function fillLmdb(path: string, count: number): Promise<void> {
  const { records, commits, close } = await openEnvironment(path);
  const value = bytesOf({ stamp: new Ages(currentBoot(), systemClock).now(), record: settled() });
  const all = scopes(count);
  for (let done = 0; done < count; done += A_STEP) {
    await commits.write(async () => {
      records.transactionSync(() => {
        for (let i = 0; i < A_STEP; i++) {
          const next = all.next();
          if (!next.done) void records.put(next.value, value, 1);
        }
      });
      return true;
    });
  }
  await close();
}

const REPLY = '+OK\r\n';

export async function fillRedis(url: string, count: number): Promise<void> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  let replied = 0;
  socket.on('data', (chunk) => {
    replied += chunk.length / REPLY.length;
  });
  const value = encodeRecord(settled(), RETENTION_MS);
  const tail = Buffer.concat([
    Buffer.from(`$${value.length}\r\n`),
    value,
    Buffer.from(`\r\n$2\r\nPX\r\n$8\r\n${RETENTION_MS}\r\n`),
  ]);
  let chunks: Buffer[] = [];
  let written = 0;
  for (const scope of scopes(count)) {
    const key = `oncegate:{${scope.toString('hex')}}`;
    chunks.push(Buffer.from(`*5\r\n$3\r\nSET\r\n$${key.length}\r\n${key}\r\n`), tail);
    written++;
    if (written % A_STEP !== 0 && written !== count) continue;
    if (!socket.write(Buffer.concat(chunks))) await once(socket, 'drain');
    chunks = [];
  }
  while (replied < count) await once(socket, 'data');
  socket.destroy();
}
