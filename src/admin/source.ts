import type { Overview } from '../console/contract.ts';
import type { Desk } from '../doubts/desk.ts';
import type { Clock } from '../lib/clock.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { AllMetrics } from '../telemetry/metrics.ts';
import type { AdminOptions } from './admin-options.ts';
import type { Sessions } from './console/sessions.ts';

/** One condition of readiness. */
export interface Check {
  name: 'store' | 'upstream' | 'keys' | 'draining' | 'operations' | 'certificates' | 'configuration';
  ok: boolean;
  detail: string;
  /** Settings that weaken the promise: a store that can lose records, a policy that can pay twice. */
  warnings?: string[];
}

/** What the admin port serves. */
export interface AdminSource {
  metrics: Pick<AllMetrics, 'text'>;
  readiness: { checks(): Promise<Check[]> };
  desk: Desk;
  /** @param afterMs leaves out the samples until this time */
  overview: { read(afterMs: number): Promise<Overview> };
}

export interface AdminTools {
  options: AdminOptions;
  /** Who has logged in to the console. */
  sessions: Sessions;
  clock: Clock;
  emit: Emit;
}
