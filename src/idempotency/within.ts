/** Its answer, or undefined after `ms` or when the merchant leaves. */
export async function within<T>(work: Promise<T>, ms: number, gone?: AbortSignal): Promise<T | undefined> {
  let wake: () => void = () => {};
  const over = new Promise<undefined>((resolve) => {
    wake = () => resolve(undefined);
  });
  const timer = setTimeout(wake, Math.max(0, ms));
  if (gone?.aborted) wake();
  gone?.addEventListener('abort', wake);
  try {
    return await Promise.race([work, over]);
  } finally {
    clearTimeout(timer);
    gone?.removeEventListener('abort', wake);
  }
}
