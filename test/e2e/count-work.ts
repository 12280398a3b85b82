/**
 * Preloaded into a gateway (`node --import`), counts what the process does: asynchronous resources by type, and the bytes of
 * Buffers that are copied. SIGUSR2 prints the counts so far: `counts` and JSON.
 */
import { createHook } from 'node:async_hooks';

const counts: Record<string, number> = { copiedBytes: 0 };
const count = (name: string, by = 1): void => {
  counts[name] = (counts[name] ?? 0) + by;
};

createHook({ init: (_, type) => count(type) }).enable();

const { concat } = Buffer;
Buffer.concat = (...args: Parameters<typeof concat>) => {
  const whole = concat(...args);
  count('copiedBytes', whole.length);
  return whole;
};
const { copy } = Buffer.prototype;
Buffer.prototype.copy = function (...args: Parameters<typeof copy>) {
  const bytes = copy.apply(this, args);
  count('copiedBytes', bytes);
  return bytes;
};

process.on('SIGUSR2', () => process.stdout.write(`counts ${JSON.stringify(counts)}\n`));
