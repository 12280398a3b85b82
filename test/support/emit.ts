import type { Emit, EventName, Told } from '../../src/telemetry/emit.ts';

/** An `Emit` that calls these functions. */
export const emitTo =
  (listeners: { [E in EventName]?: (told: Told<E>) => unknown }): Emit =>
  (event, told) =>
    listeners[event]?.(told);
