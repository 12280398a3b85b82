/**
 * Rules, ledger and register in random worlds: owners, readers and operators of a few keys, on a network that refuses, loses and
 * delays commands, with pauses, deaths, lapsed leases and the ends of lifetimes. Time is virtual: a seed gives one history.
 * `WORLD_SEED=… WORLDS=1 npx vitest run test/unit/worlds` runs a history again.
 */
import { expect, it } from 'vitest';
import { Ledger } from '../../../src/ledger/ledger.ts';
import type { Scope } from '../../../src/lib/brands.ts';
import type { Create, KeyRecord, Replace, Reply } from '../../../src/store/register.ts';
import { MemoryRegister } from '../../support/memory-register.ts';
import { Key, type Mistake } from './key.ts';
import { FaultyRegister, LEASE_MS, World } from './world.ts';

const WORLDS = Number(process.env.WORLDS ?? 0);
const SEED = Number(process.env.WORLD_SEED ?? Math.floor(Math.random() * 2 ** 31));
const WITHIN_MS = 2500;
/** A mistake that breaks the promise is found within so many worlds. */
const ENOUGH = 30_000;

const retentions = { retentionMs: 8 * LEASE_MS, inDoubtRetentionMs: 40 * LEASE_MS };

interface Wrong {
  mistake?: Mistake;
  Register?: typeof MemoryRegister;
}

/** Runs one history. Returns the promises that it breaks. */
async function history(seed: number, { mistake, Register = MemoryRegister }: Wrong = {}): Promise<string[]> {
  const world = new World(seed);
  const { random } = world;
  const network = {
    faults: random.pick([0, 0.1, 0.3, 0.5]),
    lockNodes: random.chance(0.3),
    failovers: random.chance(0.3),
  };
  const register = new Register(() => world.nowMs, '0'.repeat(32));
  // Two gateways that were configured differently.
  const gateways = [LEASE_MS, 0.6 * LEASE_MS].map((leaseMs, n) => {
    const own = { gatewayId: `gateway-${n}`, lifetimes: { leaseMs, ...retentions }, clock: world.clock };
    return { ledger: new Ledger(new FaultyRegister(register, world, network), own), leaseMs };
  });
  const keys = Array.from({ length: random.between(1, 2) }, (_, n) => {
    const scope = `${n}`.repeat(64) as Scope;
    return new Key({ world, register, gateways, ...retentions, mistake }, scope);
  });
  await world.run();
  for (const key of keys) await key.check();
  return keys.flatMap(({ broken }) => broken);
}

it('keep the promise, whatever happens', async () => {
  const startedMs = performance.now();
  let worlds = 0;
  while (WORLDS > 0 ? worlds < WORLDS : performance.now() - startedMs < WITHIN_MS) {
    const seed = SEED + worlds++;
    expect((await history(seed)).join('\n'), `WORLD_SEED=${seed} WORLDS=1`).toBe('');
  }
  console.log(`${worlds} worlds from seed ${SEED}`);
});

const replacing = (change: (write: Replace, there: KeyRecord | undefined) => Replace) =>
  class extends MemoryRegister {
    override async replace(id: Scope, write: Replace): Promise<Reply> {
      const changed = change(write, (await this.read(id))?.record);
      return changed ? await super.replace(id, changed) : { done: true };
    }
  };

const creating = (change: (write: Create) => Create | undefined) =>
  class extends MemoryRegister {
    override async create(id: Scope, write: Create): Promise<Reply> {
      const changed = change(write);
      return changed ? await super.create(id, changed) : { done: true };
    }
  };

let creations = 0;
const mistakes: [what: string, wrong: Wrong][] = [
  ...(
    [
      ...(['sends without the fence', 'sends after a start without an answer'] as const),
      ...(['does not take back a start without an answer', 'releases after an unknown end'] as const),
      ...(['does not say that its merchant was told', 'resolves whatever is there'] as const),
    ] as const
  ).map((mistake): [string, Wrong] => [`a gateway that ${mistake}`, { mistake }]),
  [
    'a register that replaces whatever is there',
    { Register: replacing((write, there) => ({ ...write, revision: there?.revision })) },
  ],
  ['a register that voids no token', { Register: replacing(({ voidToken, ...write }) => write) }],
  [
    'a register that loses one start of twenty',
    { Register: creating((write) => (++creations % 20 ? write : undefined)) },
  ],
  [
    'a register that evicts',
    { Register: creating((write) => ({ ...write, expiresInMs: retentions.retentionMs })) },
  ],
];

it.each(mistakes)('find %s', async (_, wrong) => {
  let broken: string[] = [];
  for (let n = 0; n < ENOUGH && broken.length === 0; n++) broken = await history(SEED + n, wrong);
  expect(broken).not.toEqual([]);
});
