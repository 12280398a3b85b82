import { Executor } from '../backend/executor.ts';
import { MAX_PROBE_BYTES, probeKey } from '../backend/key-probe.ts';
import type { Config } from '../config/schema.ts';
import { FileKeySource } from '../keys/file-key-source.ts';
import type { KeySource } from '../keys/key-source.ts';
import type { UpstreamKeyOptions } from '../keys/options.ts';
import { UpstreamKeySource } from '../keys/upstream-key-source.ts';
import type { ClientTls } from '../lib/client-tls.ts';
import type { Clock } from '../lib/clock.ts';
import type { KeyReload } from '../lib/context.ts';
import type { Observer } from '../telemetry/observer.ts';
import type { Tracing } from '../telemetry/tracing.ts';

export interface KeyTools {
  clock: Clock;
  observer: Observer;
  tracing: Tracing | undefined;
  /** For the backend's certificate, as in the Executor. */
  upstreamTls?: ClientTls | undefined;
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
  const { path } = source;
  const onReload = (reload: KeyReload) => tools.observer.keysReloaded(reload);
  return { keys: await FileKeySource.open({ path, pepper, onReload }) };
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
