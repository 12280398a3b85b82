/** A process that makes the calls which its parent writes to standard input, one JSON array a line. */
import { createInterface } from 'node:readline';
import type { StoreUnavailable } from '../../src/store/types.ts';
import { openSqliteStore, type SqliteOptions } from './open-store.ts';
import { newRequest, paid } from './requests.ts';

/** `refused`: why the call was rejected. */
export type Reply = { answer: unknown } | { refused: { message: string; maybeWritten: boolean } };

export interface RemoteRequest {
  key: string;
  requestId: string;
  /** Hexadecimal. */
  token: string;
}

/** `reopen`: closes the store and opens it again. */
export type RemoteCall = 'start' | 'complete' | 'release' | 'health' | 'refusing' | 'reopen';

const [path, options] = JSON.parse(process.argv[2] ?? '') as [string, SqliteOptions];
const open = () => openSqliteStore(path, options);
let store = await open();

async function make(call: RemoteCall, { key, requestId, token }: RemoteRequest): Promise<unknown> {
  const request = { ...newRequest({ key, requestId }), token: Buffer.from(token, 'hex') as never };
  if (call === 'start') return (await store.start(request)).kind;
  if (call === 'complete') return await store.complete(request, paid(key));
  if (call === 'release') return await store.takeBack(request);
  if (call === 'refusing') return store.refusing ?? null;
  if (call === 'health') return await store.health();
  await store.close();
  store = await open();
  return null;
}

const say = (id: number, reply: Reply) => process.stdout.write(`${JSON.stringify([id, reply])}\n`);

createInterface(process.stdin)
  .on('line', async (line) => {
    const [id, call, request] = JSON.parse(line) as [number, RemoteCall, RemoteRequest];
    try {
      say(id, { answer: await make(call, request) });
    } catch (error) {
      const { message, maybeWritten } = error as StoreUnavailable;
      say(id, { refused: { message, maybeWritten } });
    }
  })
  .on('close', () => process.exit());
say(0, { answer: 'open' });
