import { atEndOfFile } from './at-end-of-file.ts';
import { TcpProxy } from './breakable-wire.ts';

export { TcpProxy } from './breakable-wire.ts';

const open = new Set<TcpProxy>();
atEndOfFile(async () => {
  await Promise.all([...open].map((proxy) => proxy.close()));
  open.clear();
});

/** A TCP proxy in front of a local port, which tests can break; closed after the test file. */
export async function startProxy(targetPort: number, host?: string): Promise<TcpProxy> {
  const proxy = new TcpProxy(targetPort, host);
  open.add(proxy);
  await proxy.listen();
  return proxy;
}
