import type { IncomingMessage, ServerResponse } from 'node:http';
import express from 'express';
import type * as z from 'zod';
import { checkConfig } from '../config/load.ts';
import type { configSchema } from '../config/schema.ts';
import { RunningGateway } from '../gateway/gateway.ts';
import { systemClock } from '../lib/clock.ts';
import { createLogger, type Logger } from '../telemetry/logger.ts';
import { isBodyTaken } from './parsed-body.ts';
import type { Health } from './stores.ts';

/**
 * A configuration, as in a configuration file: docs/configuration.md lists its options and their defaults. Times are in
 * milliseconds, or texts such as `500ms`, `30s`, `15m`, `24h` and `30d`. Placeholders such as `${NAME}` are not replaced.
 */
export type GatewayConfig = WithDurations<z.input<typeof configSchema>>;

/** Options in milliseconds may also be durations. */
type WithDurations<T> = T extends readonly (infer Item)[]
  ? WithDurations<Item>[]
  : T extends object
    ? { [Name in keyof T]: Name extends `${string}Ms` ? T[Name] | Duration : WithDurations<T[Name]> }
    : T;
type Duration = `${number}${'ms' | 's' | 'm' | 'h' | 'd'}`;

/** The ports that a gateway listens on. */
export interface GatewayPorts {
  /** The port for merchants. */
  port: number;
  /** The port for operators: metrics, health and records. */
  adminPort: number;
}

/** A check of `/readyz`. */
export interface GatewayCheck extends Health {
  /** What was checked: for example `store`. */
  name: string;
}

/** Options of {@link createGateway}, apart from the configuration. */
export interface GatewayOptions {
  /** A pino logger. Default: one that writes to standard output, at the level of the configuration's `log.level`. */
  logger?: Logger;
}

/** The gateway that {@link createGateway} resolves to. */
export interface Gateway {
  /**
   * The whole gateway as an Express application, to mount in a larger one, before body parsers. Then the server of the larger one has to do what
   * `listen` would do; see docs/embedding.md.
   */
  readonly app: (req: IncomingMessage, res: ServerResponse, next?: (error?: unknown) => void) => void;
  /**
   * Listens on the ports of `listen` and `admin`.
   *
   * @returns the ports
   * @throws {Error} if an address cannot be listened on
   */
  listen(): Promise<GatewayPorts>;
  /** The checks of `/readyz`. The gateway is ready if all are `ok`. */
  checks(): Promise<readonly GatewayCheck[]>;
  /** All metrics, in Prometheus' text format. */
  metrics(): Promise<string>;
  /** Graceful shutdown: waits for requests and pending writes, as configured in `shutdown`, and closes the store. */
  close(): Promise<void>;
}

/**
 * Opens a gateway in this process. It listens only after `listen()`.
 *
 * @param config as in a configuration file
 * @param options default: all defaults
 * @returns the gateway. Call its `close` before the process exits
 * @throws {Error} with one line for each mistake in the configuration
 * @throws {Error} with a message for the operator if the store or the keys cannot be opened
 */
export async function createGateway(config: GatewayConfig, options: GatewayOptions = {}): Promise<Gateway> {
  const checked = checkConfig(config, 'createGateway');
  const logger = options.logger ?? createLogger(checked.log.level);
  const { identityFile } = checked.store;
  const gateway = await RunningGateway.open(checked, { clock: systemClock, logger, identityFile });
  gateway.begin();
  const { emit, readiness } = gateway;
  for (const warning of await readiness.warnings()) emit('attention', { warning });
  return {
    app: express()
      .disable('x-powered-by')
      .use((req, res, next) => {
        // The backend would get the rest of it, or the request no answer.
        if (isBodyTaken(req)) next(new Error(BODY_TAKEN));
        else gateway.app.handle(req, res);
      }),
    listen: async () => {
      const ports = await gateway.listen();
      emit('listening', ports);
      return ports;
    },
    checks: () => gateway.readiness.checks(),
    metrics: () => gateway.metrics.text(),
    close: () => gateway.shutdown(),
  };
}

const BODY_TAKEN =
  'another middleware has read the body, or reads it: mount the app of createGateway() before it, and before body parsers';
