import { StoreUnavailable } from '../../store.ts';

/** Bounds the time, in milliseconds, and gives every failure one name. @throws {StoreUnavailable} */
export async function answering<T>(work: () => Promise<T>, timeoutMs: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const giveUp = () => reject(new StoreUnavailable(`lmdb did not answer within ${timeoutMs} ms`));
    timer = setTimeout(giveUp, timeoutMs);
  });
  try {
    return await Promise.race([work(), late]);
  } catch (error) {
    throw unavailable(error);
  } finally {
    clearTimeout(timer);
  }
}

export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export function unavailable(error: unknown): StoreUnavailable {
  if (error instanceof StoreUnavailable) return error;
  return new StoreUnavailable(`lmdb: ${messageOf(error)}`, { cause: error });
}
