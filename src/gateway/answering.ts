import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { Roster } from '../kernel/roster.ts';

/** How far an answer has come that waits for its merchant: all of it is there, or the bytes that the merchant has taken. */
type Waiting = 'whole' | 'queued' | number;

function waitingOf(res: ServerResponse): Waiting | undefined {
  const { socket } = res;
  // A whole answer that is queued behind another on its connection holds nothing.
  if (res.writableEnded) return socket ? 'whole' : undefined;
  if (!res.writableNeedDrain) return undefined;
  return socket ? socket.bytesWritten - socket.writableLength : 'queued';
}

/** The answers that are under way on each connection. */
export class Answering {
  readonly #open = new WeakMap<Duplex, ServerResponse[]>();
  readonly #all = new Roster<ServerResponse>();
  /** How far each answer that waits for its merchant had come at the last sweep. */
  readonly #waiting = new WeakMap<ServerResponse, Waiting | undefined>();

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

  /** Each becomes the last of its connection, where its head is not sent yet. */
  makeLast(): void {
    for (const res of this.#all.values()) res.shouldKeepAlive = false;
  }

  /** Is one of them the last of its connection? */
  closes(socket: Duplex): boolean {
    return this.#open.get(socket)?.some((res) => !res.shouldKeepAlive) ?? false;
  }

  /**
   * Ends connections that have not taken a whole answer since the last call, or nothing more of a streamed one. A streamed
   * answer keeps a connection to the backend, so it may not wait for longer behind another answer on its own connection.
   */
  endUntaken(): void {
    for (const res of this.#all.values()) {
      const waiting = waitingOf(res);
      if (waiting !== undefined && this.#waiting.get(res) === waiting) res.req.socket.destroy();
      this.#waiting.set(res, waiting);
    }
  }

  /** The answer that is being written, or will be next. */
  current(socket: Duplex): ServerResponse | undefined {
    return this.#open.get(socket)?.find((res) => res.socket);
  }

  busy(socket: Duplex): boolean {
    return (this.#open.get(socket)?.length ?? 0) > 0;
  }

  /** The first answer that is owed to a request that came whole, or is on its way already. */
  next(socket: Duplex): ServerResponse | undefined {
    return this.#open.get(socket)?.find((res) => res.req.complete || res.headersSent);
  }
}

/** After these times a client that has closed its side is probed; a fast answer is there before. */
const PROBE_AFTER_MS = [100, 200, 1200];

/** A stream to such a client may pause for this long, and at most twice as long. */
const QUIET_MS = 2000;

/** Lets a client that has sent FIN behind its last request read the answers that it is owed. */
export function answerHalfClosed(server: Server, answering: Answering): void {
  // Node's types lack this.
  Object.assign(server, { httpAllowHalfOpen: true });
  server.on('connection', (socket: Socket) => {
    socket.once('end', () => {
      if (!socket.destroyed && answering.busy(socket)) watch(socket, answering);
    });
  });
}

/**
 * TCP does not say whether a client that has sent FIN still reads, or has gone. Only bytes do: the system of a client that
 * has gone answers them with a reset, and the next write fails. So the client gets `100 Continue`, which every client of
 * HTTP/1.1 has to skip (RFC 9110 §15.2), until its answer begins. An answer that has begun and then pauses cannot be
 * probed: its connection is closed.
 */
function watch(socket: Socket, answering: Answering): void {
  const probes = PROBE_AFTER_MS.map((afterMs) =>
    setTimeout(() => {
      const res = answering.current(socket);
      if (res && !res.headersSent && res.req.httpVersion === '1.1') res.writeContinue();
    }, afterMs),
  );
  let writtenBefore = -1;
  const quiet = setInterval(() => {
    const pauses = answering.current(socket)?.headersSent && socket.writableLength === 0;
    if (pauses && socket.bytesWritten === writtenBefore) socket.destroy();
    writtenBefore = pauses ? socket.bytesWritten : -1;
  }, QUIET_MS);
  socket.once('close', () => {
    for (const probe of probes) clearTimeout(probe);
    clearInterval(quiet);
  });
}
