import { Redis } from 'ioredis';
import { StoreUnavailable } from '../../store.ts';

export interface Connection {
  url: string;
  /** A command that takes longer is taken for lost, though it may still be executed. */
  timeoutMs: number;
}

/**
 * A client that never executes twice and never hangs: ioredis' defaults send a command again after a reconnect,
 * and hold commands back while the connection is down. With both off, a `commandTimeout` is needed besides,
 * because replies that were under way at a reconnect never come.
 */
export function createClient({ url, timeoutMs }: Connection): Redis {
  const client = new Redis(url, {
    lazyConnect: true,
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    enableOfflineQueue: false,
    commandTimeout: timeoutMs,
    connectTimeout: Math.max(500, timeoutMs),
    retryStrategy: (attempt) => Math.min(25 * 2 ** Math.min(attempt, 5), 500),
  });
  // Without a listener an unreachable Redis would end the process; each command reports its own failure.
  client.on('error', () => {});
  return client;
}

/** Resolves when the client is ready. @throws {StoreUnavailable} after `withinMs` */
export async function connect(client: Redis, withinMs: number): Promise<void> {
  let last = 'no answer';
  const remember = (error: Error) => {
    last = error.message || String((error as NodeJS.ErrnoException).code);
  };
  client.on('error', remember);
  const ready = new Promise<void>((resolve) => client.once('ready', resolve));
  // A failed first attempt is followed by others; the timer decides.
  client.connect().catch(remember);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new StoreUnavailable(`redis cannot be reached: ${last}`)), withinMs);
  });
  try {
    await Promise.race([ready, late]);
  } finally {
    clearTimeout(timer);
    client.off('error', remember);
  }
}
