/**
 * oncegate as a package: the whole gateway ({@link createGateway}), and its engine as Express middleware in front of your own
 * handlers ({@link idempotency}) or of a backend ({@link forward}).
 *
 * @module
 */

export type { Merchant } from './lib/context.ts';
export { type BearerAuthMiddleware, type BearerAuthOptions, bearerAuth } from './middleware/bearer-auth.ts';
export {
  createGateway,
  type Gateway,
  type GatewayCheck,
  type GatewayConfig,
  type GatewayOptions,
  type GatewayPorts,
} from './middleware/create-gateway.ts';
export { type ForwardHandler, type ForwardOptions, forward } from './middleware/forward.ts';
export type {
  IdempotencyLimits,
  IdempotencyMiddleware,
  IdempotencyOptions,
  LookupOptions,
  LookupResult,
} from './middleware/handler-options.ts';
export type { Idempotency } from './middleware/handler-request.ts';
export { idempotency } from './middleware/idempotency.ts';
export type { TransactionAnswer } from './middleware/respond.ts';
export { createMetrics, type Metrics, metricsMiddleware } from './middleware/shared-metrics.ts';
export {
  type EncryptionKey,
  type EncryptionOptions,
  type Health,
  type IdempotencyStore,
  type LifetimeOptions,
  type PostgresStoreOptions,
  postgresStore,
  type RedisStoreOptions,
  type RedisTls,
  redisStore,
  type SqliteStoreOptions,
  type StoreTls,
  sqliteStore,
} from './middleware/stores.ts';
export type { TransactionOptions } from './middleware/transactions/handler-transaction.ts';
export type { Isolation, SqlClient } from './store/register.ts';
export type { Logger } from './telemetry/logger.ts';
