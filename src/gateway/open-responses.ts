import type { ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { UnorderedList } from '../lib/collections.ts';
import { cutOff } from '../lib/problem.ts';

/**
 * How far a response has come that waits for its client to read. `complete`: the gateway has written all of it, and Node
 * buffers the rest. `pipelined`: it is incomplete, and queued behind another response on its connection. A number: it is
 * incomplete, and this many bytes of its connection were handed to the kernel.
 */
type Progress = 'complete' | 'pipelined' | number;

/** How far a response has come that waits for its client. */
function progressOf(res: ServerResponse): Progress | undefined {
  const { socket } = res;
  // A complete response that is pipelined behind another one occupies no connection to the backend.
  if (res.writableEnded) return socket ? 'complete' : undefined;
  if (!res.writableNeedDrain) return undefined;
  return socket ? socket.bytesWritten - socket.writableLength : 'pipelined';
}

/** The open responses of each connection: not sent completely, and not aborted. */
export class OpenResponses {
  readonly #open = new WeakMap<Duplex, ServerResponse[]>();
  readonly #all = new UnorderedList<ServerResponse>();
  /** The progress of each response at the last call of {@link closeUnread}. */
  readonly #progress = new WeakMap<ServerResponse, Progress | undefined>();

  begin(socket: Duplex, res: ServerResponse): void {
    let open = this.#open.get(socket);
    if (!open) {
      open = [];
      this.#open.set(socket, open);
    }
    open.push(res);
    const leave = this.#all.add(res);
    res.once('close', () => {
      open.splice(open.indexOf(res), 1);
      leave();
    });
  }

  /** Makes every open response close its connection, unless its head was sent. */
  endKeepAlive(): void {
    for (const res of this.#all.values()) if (!res.headersSent) res.shouldKeepAlive = false;
  }

  /** Cuts off every response whose head was sent and which is incomplete. */
  cutOff(): void {
    for (const res of this.#all.values()) if (res.headersSent && !res.writableEnded) cutOff(res);
  }

  /** Whether this connection will be closed after one of its open responses. */
  willClose(socket: Duplex): boolean {
    return this.#open.get(socket)?.some((res) => !res.shouldKeepAlive) ?? false;
  }

  /**
   * Closes connections whose client does not read: a complete response is still not read completely after one interval,
   * or nothing more of a streamed one was read. A streamed response occupies a connection to the backend, so the time for
   * which it is pipelined behind another response counts too.
   */
  closeUnread(): void {
    for (const res of this.#all.values()) {
      const progress = progressOf(res);
      const isUnread = progress !== undefined && this.#progress.get(res) === progress;
      this.#progress.set(res, progress);
      if (!isUnread) continue;
      if (res.socket) cutOff(res);
      else res.req.socket.destroy();
    }
  }

  /** Whether this connection has an open response. */
  busy(socket: Duplex): boolean {
    return (this.#open.get(socket)?.length ?? 0) > 0;
  }

  /** The first open response that must be finished: its request arrived completely, or its head was sent. */
  firstOwed(socket: Duplex): ServerResponse | undefined {
    return this.#open.get(socket)?.find((res) => res.req.complete || res.headersSent);
  }
}
