import type { Ended, Event, StopsCompleting } from './history.ts';
import { isCompleted, isInDoubt } from './merchants.ts';

/** The longest time until a gateway reaches a store that works again. */
const STORE_BACK_WITHIN_MS = 1500;
/** The longest time until it has then stored the results that it acknowledged meanwhile. It tries once a second. */
const STORED_WITHIN_MS = 3000;

export type Death = Extract<Event, { event: 'gateway_died' }>;
export type Loss = Extract<Event, { event: 'backend_lost' }> | Death;

/** The faults and losses during the calls. */
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
 * Finds a result that was acknowledged to a merchant and then lost. A result must be stored before it is acknowledged, with one
 * exception: the store fails at that moment, for longer than `completeRetryMs`, for all gateways or for the one that answers.
 * Then other gateways may see the key in doubt until the fault is healed, and for good only if that gateway was killed before.
 */
export function lostResult(own: readonly Call[], { faults, losses, failsOver }: World): string | undefined {
  const completed = own.filter(({ end }) => end && isCompleted(end.ended));
  const acknowledged = completed.reduce<Call | undefined>(
    (first, call) => ((call.end?.atMs ?? 0) < (first?.end?.atMs ?? Number.POSITIVE_INFINITY) ? call : first),
    undefined,
  );
  const acknowledgedAtMs = acknowledged?.end?.atMs;
  if (acknowledged === undefined || acknowledgedAtMs === undefined) return undefined;
  // A replay was read from the store, and may come from another gateway than the one that executed.
  const replayed = acknowledged.end?.ended.kind === 'result' && acknowledged.end.ended.replayed;
  const owners = replayed ? own.filter(({ start }) => start.atMs <= acknowledgedAtMs) : [acknowledged];
  const isStored = replayed && !failsOver;
  const storedByMs = isStored ? acknowledgedAtMs : storedBy(acknowledged.start, acknowledgedAtMs, faults);
  const diedWithIt = losses.some(
    (loss) =>
      !isStored &&
      loss.event === 'gateway_died' &&
      owners.some(({ start }) => isOf(loss, start)) &&
      loss.atMs <= storedByMs,
  );
  const lost = own.find(({ start, end }) => {
    // The last call after the run must find it stored, whatever failed shortly before.
    const fromMs = start.as === 'last' ? acknowledgedAtMs : Math.max(acknowledgedAtMs, storedByMs);
    return start.atMs > fromMs && end !== undefined && isInDoubt(end.ended);
  });
  if (!lost || diedWithIt) return undefined;
  return `in doubt at ${lost.end?.atMs} ms, acknowledged at ${acknowledgedAtMs} ms`;
}

/** The time at which the result of this call must be stored: before it was acknowledged, unless the store failed. */
function storedBy(
  { atMs, gateway }: Call['start'],
  acknowledgedAtMs: number,
  faults: readonly FaultSpan[],
): number {
  let byMs = Number.NEGATIVE_INFINITY;
  for (const fault of faults) {
    const isStopped = fault.stops === 'everywhere' || (fault.stops === 'there' && fault.gateway === gateway);
    const meanwhile = fault.fromMs <= acknowledgedAtMs && fault.toMs + STORE_BACK_WITHIN_MS >= atMs;
    // The next fault may begin before the result is stored, and delays it too.
    if ((isStopped && meanwhile) || fault.fromMs <= byMs)
      byMs = Math.max(byMs, fault.toMs + STORED_WITHIN_MS);
  }
  return byMs;
}

/** The time span of a fault that prevents results from being stored. */
export interface FaultSpan {
  name: string;
  gateway: number | undefined;
  stops: StopsCompleting;
  fromMs: number;
  toMs: number;
}

/** Sorted by their beginning. */
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

/** Whether the process that got this call died after the call. */
export const isOf = (death: Death, call: Call['start']): boolean =>
  death.gateway === call.gateway && death.life === call.life && death.atMs >= call.atMs;
