import { createPrivateKey, hash, X509Certificate } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { createSecureContext, type SecureContext } from 'node:tls';
import type { Clock } from './clock.ts';
import { messageOf, readBounded } from './files.ts';
import { Followed } from './followed.ts';

/** Paths of PEM files. `cert` begins with the own certificate; its intermediates follow. `key` belongs to it. */
export interface CertificatePaths {
  ca?: string | undefined;
  cert?: string | undefined;
  key?: string | undefined;
}

/** The content of the files, as `tls.connect` and `tls.createServer` take it. */
export interface PemFiles {
  ca?: Buffer;
  cert?: Buffer;
  key?: Buffer;
}

export type CertificateReload = { ok: true; expiresAtMs: number } | { ok: false; error: string };

export interface WatchedCertificateOptions {
  /** The configuration section, such as `listen.tls`, for messages. */
  name: string;
  paths: CertificatePaths;
  clock: Clock;
  /** Called once for each new version of the files, and after each {@link WatchedCertificate.reload}. Must not throw. */
  onReload?: (reload: CertificateReload) => void;
}

/** Largest accepted file: 1 MiB. */
const MAX_BYTES = 1024 * 1024;
const POLL_MS = 300;
/** How often files that were refused are read again: a certificate that is not yet valid becomes valid without a change. */
const RETRY_MS = 30_000;
/** A certificate that expires within this time is reported. */
const SOON_MS = 30 * 24 * 3_600_000;

/** What a valid set of files holds. */
interface Loaded {
  files: PemFiles;
  /** Infinity: there is no own certificate. */
  expiresAtMs: number;
}

/**
 * PEM files that are read again when they change. A new version that cannot be used (not readable, half written, expired, key
 * and certificate that do not belong together) is refused: the last good one stays in use.
 */
export class WatchedCertificate {
  readonly name: string;
  readonly #options: WatchedCertificateOptions;
  readonly #followed: Followed<Loaded>;
  readonly #listeners: ((files: PemFiles) => void)[] = [];
  #loaded: Loaded;
  #readableByOthers: boolean;

  private constructor(options: WatchedCertificateOptions, loaded: Loaded, readableByOthers: boolean) {
    const { name, paths, clock, onReload } = options;
    this.name = name;
    this.#options = options;
    this.#loaded = loaded;
    this.#readableByOthers = readableByOthers;
    const followed = {
      paths: Object.values(paths).filter((path) => path !== undefined),
      ...{ pollMs: POLL_MS, retryMs: RETRY_MS },
      read: async () => {
        this.#readableByOthers = await isReadableByOthers(paths.key);
        const content = await read(paths);
        return { id: idOf(content), load: () => checked(content, clock.wallMs()) };
      },
      apply: (newest: Loaded) => {
        this.#loaded = newest;
        for (const listener of this.#listeners) listener(newest.files);
        onReload?.({ ok: true, expiresAtMs: newest.expiresAtMs });
      },
      refused: (error: unknown) => onReload?.({ ok: false, error: messageOf(error) }),
    };
    this.#followed = new Followed(followed, idOf(loaded.files));
  }

  /** An expired certificate is accepted here, with a warning: without it, the gateway could not start at all. */
  static async open(options: WatchedCertificateOptions): Promise<WatchedCertificate> {
    const { name, paths, clock } = options;
    try {
      const loaded = checked(await read(paths), clock.wallMs(), { evenOutdated: true });
      return new WatchedCertificate(options, loaded, await isReadableByOthers(paths.key));
    } catch (error) {
      throw new Error(`${name}: ${messageOf(error)}`);
    }
  }

  /** The newest version that can be used. */
  get files(): PemFiles {
    return this.#loaded.files;
  }

  /** When the own certificate expires, on the wall clock. Infinity: there is none. */
  get expiresAtMs(): number {
    return this.#loaded.expiresAtMs;
  }

  /** Calls the listener with each new version. */
  onChange(listener: (files: PemFiles) => void): void {
    this.#listeners.push(listener);
  }

  /** Reads the files again without waiting for the next check. */
  reload(): Promise<void> {
    return this.#followed.reload();
  }

  /** What an operator should know, one line each. */
  warnings(): string[] {
    const leftMs = this.expiresAtMs - this.#options.clock.wallMs();
    const until = leftMs < SOON_MS ? new Date(this.expiresAtMs).toISOString() : '';
    const { refusal } = this.#followed;
    return [
      ...(refusal === undefined ? [] : [`the newest files are refused: ${refusal}`]),
      ...(leftMs <= 0 ? [`the certificate expired at ${until}`] : []),
      ...(leftMs > 0 && leftMs < SOON_MS ? [`the certificate expires within 30 days: ${until}`] : []),
      ...(this.#readableByOthers ? ['every user of this machine can read the private key'] : []),
    ].map((warning) => `${this.name}: ${warning}`);
  }

  close(): void {
    this.#followed.close();
  }
}

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

async function read(paths: CertificatePaths): Promise<PemFiles> {
  const content: PemFiles = {};
  for (const part of ['ca', 'cert', 'key'] as const) {
    const path = paths[part];
    if (path === undefined) continue;
    content[part] = await readBounded(path, MAX_BYTES).catch((error: unknown) => {
      throw new Error(`${part}: ${path} ${messageOf(error)}`);
    });
  }
  return content;
}

/** @throws Error with the reason if the files cannot be used */
function checked(files: PemFiles, nowMs: number, { evenOutdated = false } = {}): Loaded {
  const { ca, cert, key } = files;
  if (ca) certificatesIn(ca, 'ca');
  if (!cert || !key) return { files, expiresAtMs: Number.POSITIVE_INFINITY };
  const [own] = certificatesIn(cert, 'cert') as [X509Certificate];
  if (!own.checkPrivateKey(privateKeyIn(key))) throw new Error('the key does not belong to the certificate');
  const expiresAtMs = own.validToDate.getTime();
  if (!evenOutdated && expiresAtMs <= nowMs)
    throw new Error(`the certificate expired at ${own.validToDate.toISOString()}`);
  if (!evenOutdated && own.validFromDate.getTime() > nowMs)
    throw new Error(`the certificate is not valid before ${own.validFromDate.toISOString()}`);
  try {
    createSecureContext(files);
  } catch (error) {
    // For example a key that is too short for the security level of OpenSSL.
    throw new Error(`the files cannot be used: ${messageOf(error)}`);
  }
  return { files, expiresAtMs };
}

/** Every certificate of a PEM file. OpenSSL itself ignores an incomplete one at the end. */
function certificatesIn(pem: Buffer, part: string): X509Certificate[] {
  const text = pem.toString('latin1');
  const blocks = text.match(/-----BEGIN [^-]*CERTIFICATE-----[^-]*-----END [^-]*CERTIFICATE-----/g) ?? [];
  if (blocks.length === 0) throw new Error(`${part} holds no certificate in PEM form`);
  const begun = text.split('-----BEGIN').length - 1;
  if (begun !== text.split('-----END').length - 1 || !/-----\s*$/.test(text))
    throw new Error(`${part} ends within a certificate`);
  try {
    return blocks.map((block) => new X509Certificate(block));
  } catch {
    throw new Error(`${part} holds a certificate that cannot be read`);
  }
}

function privateKeyIn(pem: Buffer) {
  try {
    return createPrivateKey(pem);
  } catch {
    // The message of OpenSSL does not help, and must not quote the key.
    throw new Error('key holds no private key in PEM form without a passphrase');
  }
}

async function isReadableByOthers(path: string | undefined): Promise<boolean> {
  if (path === undefined) return false;
  const { mode } = await stat(path).catch(() => ({ mode: 0 }));
  return (mode & 0o004) !== 0;
}

const idOf = ({ ca, cert, key }: PemFiles): string =>
  [ca, cert, key].map((content) => (content ? hash('sha256', content) : '')).join(' ');
