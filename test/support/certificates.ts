import { execFileSync } from 'node:child_process';
import { copyFileSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from './config.ts';

/** Paths of a certificate and its private key. */
export interface CertificateFiles {
  cert: string;
  key: string;
}

const openssl = (...args: string[]) => execFileSync('openssl', args, { stdio: ['ignore', 'pipe', 'pipe'] });

/** The form in which `openssl ca` takes times: YYYYMMDDHHMMSSZ. */
const asn1Time = (ms: number) => `${new Date(ms).toISOString().slice(0, 19).replace(/[-:T]/g, '')}Z`;

const DAY_MS = 24 * 3_600_000;

/** A certificate authority of a test, in a folder that is removed after the test file. */
export class Authority {
  readonly folder: string = temporaryFolder();
  /** Path of its own certificate. */
  readonly ca: string = join(this.folder, 'ca.pem');
  readonly #key = join(this.folder, 'ca.key');
  #made = 0;

  constructor() {
    openssl(
      ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '30'],
      ...['-subj', '/CN=Test authority', '-keyout', this.#key, '-out', this.ca],
    );
    const config = [
      '[ca]',
      'default_ca = here',
      '[here]',
      `dir = ${this.folder}`,
      `database = ${join(this.folder, 'index.txt')}`,
      `new_certs_dir = ${this.folder}`,
      'default_md = sha256',
      'policy = any',
      'rand_serial = yes',
      'unique_subject = no',
      'copy_extensions = copy',
      '[any]',
      'commonName = supplied',
    ];
    writeFileSync(join(this.folder, 'ca.conf'), config.join('\n'));
    writeFileSync(join(this.folder, 'index.txt'), '');
  }

  get caBytes(): Buffer {
    return readFileSync(this.ca);
  }

  /** A new certificate for loopback, or with `names` such as `DNS:payments.internal` in its place. Valid for 90 days. */
  issue({
    names = ['IP:127.0.0.1', 'DNS:localhost'],
    fromMs = Date.now() - DAY_MS,
    untilMs = Date.now() + 90 * DAY_MS,
  }: {
    names?: string[];
    fromMs?: number;
    untilMs?: number;
  } = {}): CertificateFiles {
    const name = join(this.folder, `leaf-${this.#made++}`);
    const [key, csr, cert] = [`${name}.key`, `${name}.csr`, `${name}.pem`];
    openssl(
      ...['req', '-new', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'],
      ...['-subj', `/CN=${this.#made}`, '-addext', `subjectAltName=${names.join(',')}`],
      ...['-keyout', key, '-out', csr],
    );
    openssl(
      ...['ca', '-batch', '-notext', '-config', join(this.folder, 'ca.conf')],
      ...['-cert', this.ca, '-keyfile', this.#key, '-startdate', asn1Time(fromMs)],
      ...['-enddate', asn1Time(untilMs), '-in', csr, '-out', cert],
    );
    return { cert, key };
  }

  issueExpired(): CertificateFiles {
    return this.issue({ fromMs: Date.now() - 10 * DAY_MS, untilMs: Date.now() - DAY_MS });
  }
}

/** Puts copies of these files into the place of others, each by one rename, as a certificate manager does. */
export function replaceFiles(target: CertificateFiles, source: CertificateFiles): void {
  for (const part of ['cert', 'key'] as const) {
    copyFileSync(source[part], `${target[part]}.new`);
    renameSync(`${target[part]}.new`, target[part]);
  }
}
