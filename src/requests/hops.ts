import type { IncomingMessage } from 'node:http';
import { type Problem, problem } from '../lib/problem.ts';
import { HOPS } from './fields.ts';

const MAX_HOPS = 8;
/** How many digits of the store's id a hop has: enough to tell stores apart. */
const ID_DIGITS = 16;
const HOP = /^[a-z0-9-]{1,32};[0-9a-f]{16,64}$/;

/** One pass through a layer, once the store's id is known: `LAYER;STORE`. */
export const hopOf = (layer: string, storeId: string | undefined): string | undefined =>
  storeId && `${layer};${storeId.slice(0, ID_DIGITS)}`;

/**
 * Adds this hop to the field in `req.headers`, from where it goes to the backend.
 *
 * @param hop without it, the field is passed on as it came
 * @returns the refusal of a request that has passed this layer and this store before, because it would wait for itself. Also refuses a
 *   field that cannot be read, which may hide such a pass, and one with too many hops, which shows a circle of layers on different stores
 */
export function addHop(req: IncomingMessage, hop: string | undefined): Problem | undefined {
  const field = req.headers[HOPS] as string | undefined;
  if (field === undefined) {
    if (hop !== undefined) req.headers[HOPS] = hop;
    return undefined;
  }
  const hops = field.split(',', MAX_HOPS).map((text) => text.trim());
  if (hops.length === MAX_HOPS || !hops.every((text) => HOP.test(text) && text !== hop))
    return problem('loop_detected', 'Gateways forward the request in a circle; this one did not send it.');
  if (hop !== undefined) req.headers[HOPS] = [...hops, hop].join(', ');
  return undefined;
}
