import { expect } from 'vitest';
import type { Scope } from '../../src/lib/brands.ts';
import { MemoryRegister } from '../../src/store/memory.ts';
import type { Closed, CopyRegister, Register } from '../../src/store/register.ts';

/**
 * Time passes in multiples of this. Every limit, the hour of a void token included, is more than 7 s away from every multiple,
 * so that the real duration of a test has no effect.
 */
export const STEP_MS = 22_000;
/** How far two registers may be apart in what is left of a lifetime. */
export const EXACT_MS = 7_000;

/** A store with two registers on it, as two gateways have them. Its time passes only when `pass` is called. */
export interface Place {
  readonly name: string;
  readonly nodes: readonly [Register, Register];
  pass(ms: number): Promise<void>;
  /** Empties the store. */
  reset(): Promise<void>;
  /** What is there is no record of this format any more. Its revision can still be read. */
  damage(id: Scope): Promise<void>;
  closeTo(closed: Closed): Promise<void>;
}

/** The register of tests, which the others are compared with. */
export function memory(Kind = MemoryRegister): Place {
  let nowMs = 1_000_000;
  const open = () => new Kind(() => nowMs);
  let register = open();
  return {
    name: 'memory',
    get nodes() {
      return [register, register] as const;
    },
    pass: async (ms) => {
      nowMs += ms;
    },
    reset: async () => {
      register = open();
    },
    damage: async (id) => register.damage(id),
    closeTo: (closed) => closeTo(register, closed),
  };
}

const STATES = { no: 'undone', starts: 'closing', all: 'sealed' } as const;

async function closeTo(copy: CopyRegister, closed: Closed): Promise<void> {
  const epoch = ((await copy.readCopyMark())?.epoch ?? 0) + 1;
  const mark = { epoch, state: STATES[closed], copyId: 'copy', runId: 'run', source: { id: '', count: 0 } };
  expect(await copy.changeCopyMark(mark)).toBe(true);
}
