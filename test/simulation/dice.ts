import { Random as Dice } from '../faults/chaos/random.ts';

export { Dice };

/** Dice of one actor. If another actor is left out of a history, the others still do the same. */
export function diceOf(seed: number, actor: string): Dice {
  let hash = (seed ^ 0x9e3779b9) >>> 0;
  for (let i = 0; i < actor.length; i++) hash = Math.imul(hash ^ actor.charCodeAt(i), 0x01000193) >>> 0;
  return new Dice(hash ^ (hash >>> 15));
}
