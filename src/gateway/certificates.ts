import type { Config } from '../config/schema.ts';
import { type CertificatePaths, WatchedCertificate } from '../lib/certificate.ts';
import type { Clock } from '../lib/clock.ts';
import type { Emit, Told } from '../telemetry/emit.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';

export interface CertificatesTools {
  clock: Clock;
  emit?: Emit;
  metrics?: AllMetrics;
}

/** The certificates of one process: of the listener, and those that it shows to the backend and to the store. */
export class Certificates {
  readonly #tools: CertificatesTools;
  /** By their sections. The store and the limits of merchants share one. */
  readonly #open = new Map<string, WatchedCertificate>();

  constructor(tools: CertificatesTools) {
    this.#tools = tools;
  }

  /**
   * Reads the files of a section, and follows their changes.
   *
   * @param name the section, such as `listen.tls`
   * @throws Error with a message for the operator if the files cannot be used
   */
  async open(name: string, paths: CertificatePaths): Promise<WatchedCertificate> {
    const known = this.#open.get(name);
    if (known) return known;
    const { clock, emit, metrics } = this.#tools;
    const certificate = name.replace(/\.tls$/, '') as Told<'certificate_reloaded'>['certificate'];
    const expires = (expiresAtMs: number) => {
      if (Number.isFinite(expiresAtMs)) metrics?.certificateExpires.set({ certificate }, expiresAtMs / 1000);
    };
    const watched = await WatchedCertificate.open({
      name,
      paths,
      clock,
      onReload: (reload) => {
        if (!reload.ok) emit?.('certificate_refused', { certificate, reason: reload.error });
        else {
          expires(reload.expiresAtMs);
          emit?.('certificate_reloaded', { certificate });
        }
      },
    });
    this.#open.set(name, watched);
    expires(watched.expiresAtMs);
    return watched;
  }

  get count(): number {
    return this.#open.size;
  }

  /** What an operator should know, one line each. */
  warnings(): string[] {
    return [...this.#open.values()].flatMap((certificate) => certificate.warnings());
  }

  /** Reads all files again without waiting for the next check. */
  async reload(): Promise<void> {
    await Promise.all([...this.#open.values()].map((certificate) => certificate.reload()));
  }

  close(): void {
    for (const certificate of this.#open.values()) certificate.close();
  }
}

/** The sections of a configuration that name files of certificates, with their names. */
export function certificateSections({
  listen,
  upstream,
  store,
}: Pick<Config, 'listen' | 'upstream' | 'store'>): [name: string, paths: CertificatePaths][] {
  const storeTls = store.kind !== 'sqlite' && typeof store.tls === 'object' ? store.tls : undefined;
  const sections = { 'listen.tls': listen.tls, 'upstream.tls': upstream.tls, 'store.tls': storeTls };
  return Object.entries(sections).filter(
    (section): section is [string, NonNullable<(typeof section)[1]>] => section[1] !== undefined,
  );
}
