import type { Call, Event, StopsCompleting } from './history.ts';
import { isCompleted, isInDoubt } from './merchants.ts';

/** The longest time until a gateway reaches a store that works again. */
const STORE_BACK_WITHIN_MS = 1500;
/** The longest time until it has then stored the results that it acknowledged meanwhile. It tries once a second. */
const STORED_WITHIN_MS = 3000;

export type Death = Extract<Event, { event: 'gateway_died' }>;

/** The faults and deaths during the calls. */
export interface World {
  faults: readonly FaultSpan[];
  deaths: readonly Death[];
  failsOver: boolean;
}

/**
 * Finds a result that was acknowledged to a merchant and then lost. A result must be stored before it is acknowledged, with one
 * exception: the store fails at that moment, for longer than `completeRetryMs`, for all gateways or for the one that answers.
 * Then other gateways may see the key in doubt until the fault is healed, and for good only if that gateway was killed before.
 */
export function lostResult(calls: readonly Call[], { faults, deaths, failsOver }: World): string | undefined {
  const [first] = calls
    .filter(({ ended }) => isCompleted(ended))
    .sort((one, other) => one.endedAtMs - other.endedAtMs);
  if (!first) return undefined;
  const acknowledgedAtMs = first.endedAtMs;
  // A replay was read from the store, and may come from another gateway than the one that executed.
  const isReplay = first.ended.kind === 'result' && first.ended.replayed;
  const isStored = isReplay && !failsOver;
  const storedByMs = isStored ? acknowledgedAtMs : storedBy(first, faults);
  const owners = isReplay ? calls.filter(({ atMs }) => atMs <= acknowledgedAtMs) : [first];
  const diedWithIt = deaths.some(
    (death) => !isStored && death.atMs <= storedByMs && owners.some((call) => isOf(death, call)),
  );
  const lost = calls.find(({ as, atMs, ended }) => {
    // The last call after the run must find it stored, whatever failed shortly before.
    const fromMs = as === 'last' ? acknowledgedAtMs : Math.max(acknowledgedAtMs, storedByMs);
    return atMs > fromMs && isInDoubt(ended);
  });
  if (!lost || diedWithIt) return undefined;
  return `in doubt at ${lost.endedAtMs} ms, acknowledged at ${acknowledgedAtMs} ms`;
}

/** The time at which what this call writes must be stored: before it was answered, unless the store failed. */
export function storedBy({ atMs, endedAtMs, gateway }: Call, faults: readonly FaultSpan[]): number {
  let byMs = Number.NEGATIVE_INFINITY;
  for (const fault of faults) {
    const isStopped = fault.stops === 'everywhere' || (fault.stops === 'there' && fault.gateway === gateway);
    const meanwhile = fault.fromMs <= endedAtMs && fault.toMs + STORE_BACK_WITHIN_MS >= atMs;
    // The next fault may begin before the result is stored, and delays it too.
    if ((isStopped && meanwhile) || fault.fromMs <= byMs)
      byMs = Math.max(byMs, fault.toMs + STORED_WITHIN_MS);
  }
  return byMs;
}

/** The time span of a fault that prevents results from being stored. */
export interface FaultSpan {
  gateway: number | undefined;
  stops: StopsCompleting;
  fromMs: number;
  toMs: number;
}

/** The spans of all faults, sorted by their beginning. */
export function spansOf(events: readonly Event[]): FaultSpan[] {
  const marks = events.filter(({ event }) => event === 'fault' || event === 'healed');
  return marks.flatMap((mark, at) => {
    if (mark.event !== 'fault' || mark.stopsCompleting === undefined) return [];
    const { name, gateway, stopsCompleting: stops, atMs: fromMs } = mark;
    const healed = marks.slice(at).find((later) => later.event === 'healed' && later.name === name);
    return [{ gateway, stops, fromMs, toMs: healed?.atMs ?? Number.POSITIVE_INFINITY }];
  });
}

/** Whether the process that got this call died after the call. */
export const isOf = (death: Death, { gateway, life, atMs }: Call): boolean =>
  death.gateway === gateway && death.life === life && death.atMs >= atMs;
