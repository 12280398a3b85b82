/** The result of `work`, or undefined after `ms` or when `gone` is aborted. */
export async function within<T>(work: Promise<T>, ms: number, gone?: AbortSignal): Promise<T | undefined> {
  let giveUp: () => void = () => {};
  const over = new Promise<undefined>((resolve) => {
    giveUp = () => resolve(undefined);
  });
  const timer = setTimeout(giveUp, Math.max(0, ms));
  if (gone?.aborted) giveUp();
  gone?.addEventListener('abort', giveUp);
  try {
    return await Promise.race([work, over]);
  } finally {
    clearTimeout(timer);
    gone?.removeEventListener('abort', giveUp);
  }
}
