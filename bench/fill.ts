/** Fills stores with as many completed records as a busy day leaves, before a gateway is started on them. */

import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { type Fingerprint, RECORD_ID_DIGITS, type Token } from '../src/lib/brands.ts';
import { systemClock } from '../src/lib/clock.ts';
import { encodeRecord } from '../src/store/codec.ts';
import { Names } from '../src/store/redis/commands.ts';
import { openForWriting } from '../src/store/sqlite/database.ts';
import { RECORD_COLUMNS, rowOf } from '../src/store/sqlite/records.ts';
import type { KeyRecord } from '../src/store/types.ts';

const A_STEP = 20_000;
const RECORD_ID_BYTES = RECORD_ID_DIGITS / 2;
const RETENTION_MS = 86_400_000;

const BODY = Buffer.alloc(300, 'x');
const HEADERS = ['Server', 'nginx', 'Content-Type', 'application/json', 'Content-Length', '300'];

function completed(): KeyRecord & Required<Pick<KeyRecord, 'completion'>> {
  return {
    ...{ revision: randomBytes(16), ownerGaveUp: false, restarted: false, cause: '' },
    ...{ state: 'completed', token: randomBytes(16) as Token, fingerprint: randomBytes(32) as Fingerprint },
    ...{ createdAtMs: Date.now(), changedAtMs: Date.now(), wasInDoubt: false },
    ...{ merchant: 'M-1000', operation: 'withdraw', key: '00000000-0000-0000-0000-000000000000' },
    ...{ requestId: '00000000-0000-0000-0000-000000000000', gatewayId: 'bench:1' },
    lifetimes: { leaseMs: 10_000, retentionMs: RETENTION_MS, inDoubtRetentionMs: 30 * RETENTION_MS },
    completion: { kind: 'response', response: { status: 200, headers: HEADERS, body: BODY } },
  };
}

/** Record ids in ascending order, evenly spread as hashes are. This order inserts fastest and fills the pages best. */
function* recordIds(count: number): Generator<Buffer> {
  const step = 2 ** 48 / count;
  let block = Buffer.alloc(0);
  for (let i = 0; i < count; i++) {
    if (block.length === 0) block = randomBytes(RECORD_ID_BYTES * A_STEP);
    const recordId = block.subarray(0, RECORD_ID_BYTES);
    block = block.subarray(RECORD_ID_BYTES);
    recordId.writeUIntBE(Math.floor(i * step), 0, 6);
    yield recordId;
  }
}

export async function fillSqlite(path: string, count: number): Promise<void> {
  mkdirSync(path, { recursive: true, mode: 0o700 });
  const database = openForWriting(join(path, 'records.db'));
  const insert = database.prepare(
    `INSERT INTO records (record_id, expires_at, ${RECORD_COLUMNS})
     VALUES (?, ?, ${RECORD_COLUMNS.map(() => '?')})`,
  );
  const values = rowOf(completed());
  // A new store counts running time from the machine's start.
  const expiresAt = Math.ceil(systemClock.monotonicMs()) + RETENTION_MS;
  let done = 0;
  for (const recordId of recordIds(count)) {
    if (done % A_STEP === 0) database.exec('BEGIN IMMEDIATE');
    insert.run(recordId, expiresAt, ...values);
    done++;
    if (done % A_STEP === 0 || done === count) database.exec('COMMIT');
  }
  database.close();
}

const REPLY = '+OK\r\n';
const names = new Names('oncegate');

export async function fillRedis(url: string, count: number): Promise<void> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  let replied = 0;
  socket.on('data', (chunk) => {
    replied += chunk.length / REPLY.length;
  });
  const value = encodeRecord(completed());
  const tail = Buffer.concat([
    Buffer.from(`$${value.length}\r\n`),
    value,
    Buffer.from(`\r\n$2\r\nPX\r\n$8\r\n${RETENTION_MS}\r\n`),
  ]);
  let chunks: Buffer[] = [];
  let written = 0;
  for (const recordId of recordIds(count)) {
    const key = names.recordOf(recordId.toString('hex'));
    chunks.push(Buffer.from(`*5\r\n$3\r\nSET\r\n$${key.length}\r\n${key}\r\n`), tail);
    written++;
    if (written % A_STEP !== 0 && written !== count) continue;
    if (!socket.write(Buffer.concat(chunks))) await once(socket, 'drain');
    chunks = [];
  }
  while (replied < count) await once(socket, 'data');
  socket.destroy();
}
