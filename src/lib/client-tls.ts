import { createSecureContext, type SecureContext } from 'node:tls';
import type { WatchedCertificate } from './certificate.ts';

/** What `tls.connect` needs beside host and port. */
type ClientTlsOptions = { secureContext: SecureContext; servername?: string };

/**
 * How this process connects to a server over TLS: whom it trusts, and the certificate that it shows if the server asks for
 * one. The server's certificate is always verified.
 */
export class ClientTls {
  readonly certificate: WatchedCertificate;
  readonly #servername: { servername?: string };
  #options: ClientTlsOptions;

  /** @param serverName the name that the server's certificate must have. Default: the host */
  constructor(certificate: WatchedCertificate, serverName: string | undefined) {
    this.certificate = certificate;
    this.#servername = serverName === undefined ? {} : { servername: serverName };
    this.#options = this.#made();
    certificate.onChange(() => {
      this.#options = this.#made();
    });
  }

  /** For the next connection. The same object until the certificate changes. */
  get options(): ClientTlsOptions {
    return this.#options;
  }

  // One context for all connections: reading the files for each would cost more than the handshake.
  #made(): ClientTlsOptions {
    return { secureContext: createSecureContext(this.certificate.files), ...this.#servername };
  }
}
