import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import type { Answering } from './answering.ts';

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
