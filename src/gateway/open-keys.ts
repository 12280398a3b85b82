import type { KeySource } from '../auth/key-source.ts';
import type { UpstreamKeyOptions } from '../auth/options.ts';
import { UpstreamKeySource } from '../auth/upstream-key-source.ts';
import type { Config } from '../config/schema.ts';
import type { ClientTls } from '../kernel/client-tls.ts';
import type { Clock } from '../kernel/clock.ts';
import type { KeyReload } from '../kernel/context.ts';
import type { Observer } from '../observability/observer.ts';
import type { Tracing } from '../observability/tracing.ts';
import { Executor } from '../upstream/executor.ts';
import { MAX_PROBE_BYTES, probeKey } from '../upstream/key-probe.ts';
import type { Certificates } from './certificates.ts';
import { openKeySource } from './key-sources.ts';

export interface KeyTools {
  clock: Clock;
  observer: Observer;
  certificates: Certificates;
  tracing: Tracing | undefined;
  /** For the backend's certificate, as in the Executor. */
  upstreamTls?: ClientTls | undefined;
  /** Called each time the secret keys were read again. */
  onReload(reload: KeyReload): void;
}

export interface OpenedKeys {
  keys: KeySource;
  /** Its connections to the backend are for probes of secret keys only. */
  probeExecutor?: Executor | undefined;
}

/** @throws {Error} with a message for the operator if the keys cannot be opened */
export async function openKeys(config: Config, tools: KeyTools): Promise<OpenedKeys> {
  const { keys: source, pepper } = config.auth;
  if (source.source === 'upstream') return openUpstreamKeys(config, source, tools);
  const { clock, onReload, certificates } = tools;
  return { keys: await openKeySource({ keys: source, pepper }, { clock, onReload }, certificates) };
}

/** Probes have their own connections, because they have to work while every slot is taken. */
function openUpstreamKeys(
  { upstream }: Config,
  options: UpstreamKeyOptions,
  { clock, observer, tracing, upstreamTls }: KeyTools,
): OpenedKeys {
  const connections = { ...upstream, maxConnections: options.maxProbes };
  const probeExecutor = new Executor(connections, MAX_PROBE_BYTES, clock, upstreamTls);
  const keys = new UpstreamKeySource({
    ...options,
    clock,
    probe: (secret) => probeKey(probeExecutor, options, secret, tracing?.beginOwn('key_probe', options.path)),
    probed: (result) => observer.keyProbed(result),
    failed: (reason) => observer.keysUnchecked(reason),
    merchantChanged: (from, to) => observer.merchantChanged(from, to),
  });
  return { keys, probeExecutor };
}
