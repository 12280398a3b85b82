/**
 * oncegate as a package: the whole gateway ({@link createGateway}), and its engine as Express middleware in front of your own
 * handlers ({@link idempotency}) or of a backend ({@link forward}).
 *
 * @module
 */
export { type BearerAuthMiddleware, type BearerAuthOptions, bearerAuth } from './embedding/bearer-auth.ts';
export {
  createGateway,
  type Gateway,
  type GatewayCheck,
  type GatewayConfig,
  type GatewayOptions,
  type GatewayPorts,
} from './embedding/create-gateway.ts';
export { type ForwardHandler, type ForwardOptions, forward } from './embedding/forward.ts';
export type {
  Idempotency,
  IdempotencyLimits,
  IdempotencyMiddleware,
  IdempotencyOptions,
  LookupOptions,
  LookupResult,
} from './embedding/handler.ts';
export { idempotency } from './embedding/idempotency.ts';
export { createMetrics, type Metrics, metricsMiddleware } from './embedding/metrics.ts';
export {
  type EncryptionKey,
  type EncryptionOptions,
  type Health,
  type IdempotencyStore,
  type LifetimeOptions,
  type RedisStoreOptions,
  type RedisTls,
  redisStore,
  type SqliteStoreOptions,
  sqliteStore,
} from './embedding/stores.ts';
export type { Merchant } from './kernel/context.ts';
export type { Logger } from './observability/logger.ts';
