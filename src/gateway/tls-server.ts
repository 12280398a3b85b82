import { constants } from 'node:crypto';
import type { RequestListener, Server, ServerOptions } from 'node:http';
import { createServer } from 'node:https';
import type { TLSSocket } from 'node:tls';
import type { WatchedCertificate } from '../lib/certificate.ts';

/** Why a handshake failed: a label of a metric. `disconnected` is also a probe that only opens a connection. */
export type HandshakeFailure = 'disconnected' | 'timeout' | 'refused';

export interface ListenerTls {
  certificate: WatchedCertificate;
  minVersion: 'TLSv1.2' | 'TLSv1.3';
  /** Time for a client to complete the handshake. Then its connection is closed. Milliseconds. */
  handshakeTimeoutMs: number;
  /** Called for each connection that is closed because its handshake failed. `code`: of Node or OpenSSL. */
  onHandshakeFailed(reason: HandshakeFailure, code: string): void;
}

const REASONS: Record<string, HandshakeFailure> = {
  ECONNRESET: 'disconnected',
  EPIPE: 'disconnected',
  ERR_TLS_HANDSHAKE_TIMEOUT: 'timeout',
};

/**
 * An HTTPS server that behaves like `http.createServer(options)` behind the handshake. A new version of the certificate is
 * used from the next handshake on; open connections keep theirs.
 */
export function createTlsServer(
  tls: ListenerTls,
  options: ServerOptions,
  onRequest: RequestListener,
): Server {
  const { certificate, minVersion, handshakeTimeoutMs, onHandshakeFailed } = tls;
  const secureOptions = {
    minVersion,
    // ADR 26 says why there are no session tickets.
    secureOptions: constants.SSL_OP_NO_TICKET | constants.SSL_OP_NO_RENEGOTIATION,
  };
  const server = createServer(
    {
      ...options,
      ...secureOptions,
      ...certificate.credentials,
      ALPNProtocols: ['http/1.1'],
      handshakeTimeout: handshakeTimeoutMs,
    },
    onRequest,
  );
  certificate.onChange((credentials) => server.setSecureContext({ ...secureOptions, ...credentials }));
  server.on('secureConnection', (socket: TLSSocket) => {
    // Any data listener makes Node read the socket as a stream, and no longer directly into its parser. A TLS socket that Node
    // pauses, because answers wait for the client, still delivers what is decrypted: the paused parser would lose those bytes,
    // and read on in the middle of a request.
    socket.on('data', () => {});
  });
  // Node's own listener reports a failed handshake as malformed HTTP, which would be answered in clear text or never.
  server.removeAllListeners('tlsClientError');
  server.on('tlsClientError', (error: NodeJS.ErrnoException, socket: TLSSocket) => {
    socket.destroy();
    onHandshakeFailed(REASONS[error.code ?? ''] ?? 'refused', error.code ?? error.name);
  });
  return server;
}
