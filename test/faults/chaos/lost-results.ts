import type { Ended, Event, StopsCompleting } from './history.ts';
import { isCompleted, isInDoubt } from './merchants.ts';

/** A gateway may take so long to reach a store that is well again. */
const STORE_BACK_WITHIN_MS = 1500;
/** ... and to store what it has answered meanwhile: it tries once a second. */
const STORED_WITHIN_MS = 3000;

export type Death = Extract<Event, { event: 'gateway_died' }>;
export type Loss = Extract<Event, { event: 'backend_lost' }> | Death;

/** What went wrong around the calls. */
export interface World {
  faults: readonly FaultSpan[];
  losses: readonly Loss[];
  failsOver: boolean;
}

export interface Call {
  start: Extract<Event, { event: 'call' }>;
  end?: { atMs: number; ended: Ended };
}

/**
 * A result is stored before its merchant gets it, with one exception: the store fails at that very moment, for longer than
 * `completeRetryMs`, to all gateways or to the one that answers. Then the key is in doubt to others until all is healed;
 * for good only where that gateway was killed before.
 */
export function lostResult(own: readonly Call[], { faults, losses, failsOver }: World): string | undefined {
  const completed = own.filter(({ end }) => end && isCompleted(end.ended));
  const known = completed.reduce<Call | undefined>(
    (first, call) => ((call.end?.atMs ?? 0) < (first?.end?.atMs ?? Number.POSITIVE_INFINITY) ? call : first),
    undefined,
  );
  const knownAtMs = known?.end?.atMs;
  if (known === undefined || knownAtMs === undefined) return undefined;
  // A replay is what the store had, and comes from another gateway than the one that has executed.
  const replayed = known.end?.ended.kind === 'result' && known.end.ended.replayed;
  const owners = replayed ? own.filter(({ start }) => start.atMs <= knownAtMs) : [known];
  const isStored = replayed && !failsOver;
  const storedByMs = isStored ? knownAtMs : storedBy(known.start, knownAtMs, faults);
  const tookItAlong = losses.some(
    (loss) =>
      !isStored &&
      loss.event === 'gateway_died' &&
      owners.some(({ start }) => isOf(loss, start)) &&
      loss.atMs <= storedByMs,
  );
  const lost = own.find(({ start, end }) => {
    // At the end it has to be stored, whatever failed shortly before.
    const fromMs = start.as === 'last' ? knownAtMs : Math.max(knownAtMs, storedByMs);
    return start.atMs > fromMs && end !== undefined && isInDoubt(end.ended);
  });
  if (!lost || tookItAlong) return undefined;
  return `in doubt at ${lost.end?.atMs} ms, answered at ${knownAtMs} ms`;
}

/** When a result surely is stored that this call got: before it was sent, unless the store failed. */
function storedBy({ atMs, gateway }: Call['start'], knownAtMs: number, faults: readonly FaultSpan[]): number {
  let byMs = Number.NEGATIVE_INFINITY;
  for (const fault of faults) {
    const isStopped = fault.stops === 'everywhere' || (fault.stops === 'there' && fault.gateway === gateway);
    const meanwhile = fault.fromMs <= knownAtMs && fault.toMs + STORE_BACK_WITHIN_MS >= atMs;
    // The next fault may begin before the result was stored, and a gateway may be delayed as well.
    if ((isStopped && meanwhile) || fault.fromMs <= byMs)
      byMs = Math.max(byMs, fault.toMs + STORED_WITHIN_MS);
  }
  return byMs;
}

/** When there was a fault that stops results from being stored. */
export interface FaultSpan {
  name: string;
  gateway: number | undefined;
  stops: StopsCompleting;
  fromMs: number;
  toMs: number;
}

/** In the order in which they began. */
export function spansOf(events: readonly Event[]): FaultSpan[] {
  const spans: FaultSpan[] = [];
  for (const event of events) {
    if (event.event === 'fault' && event.stopsCompleting !== undefined) {
      const { name, gateway, stopsCompleting, atMs } = event;
      spans.push({ name, gateway, stops: stopsCompleting, fromMs: atMs, toMs: Number.POSITIVE_INFINITY });
    }
    if (event.event === 'healed') {
      const span = spans.findLast(
        ({ name, toMs }) => name === event.name && toMs === Number.POSITIVE_INFINITY,
      );
      if (span) span.toMs = event.atMs;
    }
  }
  return spans;
}

/** Whether the process died that had been called, and after that. */
export const isOf = (death: Death, call: Call['start']): boolean =>
  death.gateway === call.gateway && death.life === call.life && death.atMs >= call.atMs;
