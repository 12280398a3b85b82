import { afterEach, expect, test, vi } from 'vitest';
import { type ServedGateway, shutDownOnSignal } from '../../src/cli/serve.ts';

const before = process.exitCode;

afterEach(() => {
  vi.restoreAllMocks();
  process.exitCode = before;
});

test.each([
  ['an error', new Error('the disk is full'), 1],
  ['the store’s', Object.assign(new Error('redis is away'), { name: 'StoreUnavailable' }), 69],
])(
  'a shutdown that fails with %s says so on standard error, and in the exit code',
  async (_, error, code) => {
    const on = vi.spyOn(process, 'on').mockReturnThis();
    const write = vi.spyOn(process.stderr, 'write').mockReturnValue(true);
    const exited = new Promise((resolve) => {
      vi.spyOn(process, 'exit').mockImplementation((given) => resolve(given ?? process.exitCode) as never);
    });
    const gateway = { emit: () => {}, shutdown: () => Promise.reject(error) };
    shutDownOnSignal(Promise.resolve(gateway as unknown as ServedGateway));
    const [, onTerminate] = on.mock.calls.find(([signal]) => signal === 'SIGTERM') ?? [];
    onTerminate?.();
    expect(await exited).toBe(code);
    expect(write).toHaveBeenCalledWith(`oncegate: the shutdown failed: ${error.message}\n`);
  },
);
