import { spawn } from 'node:child_process';
import { once } from 'node:events';
import * as net from 'node:net';

type Handle = net.Socket & { close(): void; getsockname(into: { port?: number }): void };

/** Opens and binds a TCP socket from which this process accepts nothing. Node has it without documentation. */
const { _createServerHandle: bind } = net as unknown as {
  _createServerHandle(address: string, port: number, family: 4): Handle;
};

/** A listening socket that gateways inherit, as systemd holds it for them. */
export interface SharedSocket {
  port: number;
  /** What `spawn` takes as a file descriptor of a child. */
  handle: net.Socket;
  close(): void;
}

/** @param onPort default: a free one */
export async function openSharedSocket(onPort = 0): Promise<SharedSocket> {
  const handle = bind('127.0.0.1', onPort, 4);
  const address: { port?: number } = {};
  handle.getsockname(address);
  // Another process makes it listen. It listens until the last process has closed it.
  const script = 'require("node:net").createServer().listen({ fd: 3 }, () => process.exit())';
  const stdio = ['ignore', 'ignore', 'inherit', handle] as const;
  await once(spawn(process.execPath, ['-e', script], { stdio: [...stdio] }), 'exit');
  return { port: address.port as number, handle, close: () => handle.close() };
}
