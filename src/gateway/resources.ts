import type { Config } from '../config/schema.ts';
import { measured } from '../ledger/measured.ts';
import { openLedger, openRedis } from '../ledger/open-store.ts';
import { StoreWatch, storeIdOf } from '../ledger/store-watch.ts';
import { ClientTls } from '../lib/client-tls.ts';
import type { Clock } from '../lib/clock.ts';
import type { Logger } from '../telemetry/logger.ts';
import { Metrics } from '../telemetry/metrics.ts';
import { Observer } from '../telemetry/observer.ts';
import type { Tracing } from '../telemetry/tracing.ts';
import { Certificates } from './certificates.ts';
import { type OpenedKeys, openKeys } from './open-keys.ts';
import type { RateLimiter } from './rate-limiter.ts';
import type { HandshakeFailure, ListenerTls } from './tls-server.ts';

export interface GatewayTools {
  clock: Clock;
  logger: Logger;
  /** Where the store's mark is noted, see ledger/identity-file.ts. Default: the store is not watched. */
  identityFile?: string | undefined;
}

/**
 * Opens what may fail, before the gateway is put together.
 *
 * @throws {Error} with a message for the operator if the store or the keys cannot be opened
 */
export async function openResources(config: Config, tools: GatewayTools) {
  const { clock, logger } = tools;
  const metrics = new Metrics();
  const observer = new Observer(metrics, logger);
  const certificates = new Certificates({ ...tools, metrics });
  let opened: OpenedKeys | undefined;
  let tracing: Tracing | undefined;
  try {
    // First, because it fails if the operator has not installed what it needs.
    tracing = await openTracing(config, { metrics, logger, clock });
    const tls = await openTls(config, certificates, metrics, logger);
    opened = await openKeys(config, {
      clock,
      observer,
      tracing,
      upstreamTls: tls.upstreamTls,
    });
    const connected = await openLedger(config, clock, {
      onUnreplicated: () => observer.unreplicated(),
      onClockStep: (stepMs) => observer.clockStepped(stepMs),
      onWriterReplaced: (error) => observer.writerReplaced(error),
      onCommitted: (ms) => observer.committed(ms),
      openCertificate: (name, paths) => certificates.open(name, paths),
    });
    if (connected.usage) metrics.trackUsage(() => connected.usage);
    let watch: StoreWatch | undefined;
    const store = measured(connected, clock, observer, () => watch?.refusal);
    const { identityFile: file } = tools;
    if (file !== undefined) watch = await StoreWatch.of(config, { file, store, clock, logger });
    metrics.track(metrics.storeForgot, () => Number(watch?.isForgotten ?? false));
    const rateLimiter = await openRateLimiter(config, clock, observer, certificates);
    const storeId = await storeIdOf(store, config.idempotency.mode, watch);
    const parts = { metrics, observer, certificates, store, watch, storeId, rateLimiter };
    return { ...parts, ...opened, ...tls, tracing };
  } catch (error) {
    await tracing?.close();
    opened?.keys.close();
    certificates.close();
    throw error;
  }
}

/** TLS of the listener and towards the backend, as far as it is configured. */
async function openTls(
  { listen, upstream, limits }: Pick<Config, 'listen' | 'upstream' | 'limits'>,
  certificates: Certificates,
  metrics: Metrics,
  logger: Logger,
) {
  const listenerTls: ListenerTls | undefined = listen.tls && {
    certificate: await certificates.open('listen.tls', listen.tls),
    minVersion: listen.tls.minVersion,
    handshakeTimeoutMs: limits.headerTimeoutMs,
    onHandshakeFailed: (reason: HandshakeFailure, code: string) => {
      metrics.handshakesFailed.inc({ reason });
      // Everyone can make a handshake fail, so it is a line only at this level.
      logger.debug({ reason, code }, 'a TLS handshake failed');
    },
  };
  const upstreamTls =
    upstream.tls &&
    new ClientTls(await certificates.open('upstream.tls', upstream.tls), upstream.tls.serverName);
  return { listenerTls, upstreamTls };
}

/** Undefined: tracing is off, and requests keep the traces that they come with. OpenTelemetry is loaded only if spans are sent somewhere. */
async function openTracing(
  { tracing, upstream }: Config,
  tools: Pick<GatewayTools, 'clock' | 'logger'> & { metrics: Metrics },
): Promise<Tracing | undefined> {
  const { endpoint, begin } = tracing;
  if (endpoint === undefined && !begin) return undefined;
  const { Tracing } = await import('../telemetry/tracing.ts');
  if (endpoint === undefined) return new Tracing(tracing);
  const { openRecorder } = await import('../telemetry/span-export.ts');
  return new Tracing(
    tracing,
    await openRecorder({ ...tracing, endpoint }, { ...tools, upstream: upstream.url }),
  );
}

/** Undefined: merchants may send any number of requests. The library takes time to load. */
async function openRateLimiter(
  config: Config,
  clock: Clock,
  observer: Observer,
  certificates: Certificates,
): Promise<RateLimiter | undefined> {
  const { perMerchant } = config.limits;
  if (!perMerchant) return undefined;
  const { RateLimiter } = await import('./rate-limiter.ts');
  return new RateLimiter({
    clock,
    redis: await openRedis(config.store, perMerchant.timeoutMs, (name, paths) =>
      certificates.open(name, paths),
    ),
    prefix: config.store.kind === 'redis' ? config.store.prefix : '',
    onShared: (isShared, reason) => observer.limitsShared(isShared, reason),
  });
}
