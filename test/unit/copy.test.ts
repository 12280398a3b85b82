/** A copy between two registers in memory: killed at each step, begun again, undone, and refused. */
import { describe, expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.ts';
import { Copy, type CopyOptions, CopyRefused } from '../../src/ledger/store-copy.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { systemRandom } from '../../src/lib/random.ts';
import type { AuditRecord } from '../../src/store/doubts.ts';
import {
  type CopyProgress,
  type CopyRegister,
  type CopyState,
  decodeCopyProgress,
  type Register,
  type Seen,
} from '../../src/store/register.ts';
import { type Execution, StoreClosed, StoreUnavailable } from '../../src/store/types.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import { duplicateOf, newRequest, paid } from '../support/requests.ts';
import { until } from '../support/until.ts';

const lifetimes = { leaseMs: 10, retentionMs: 1_000_000, inDoubtRetentionMs: 10_000_000 };
const note = { by: 'ada', reason: 'in the books' };

class Killed extends Error {}

/** Two stores, the old one with a record of each kind, and a clock that stands still. */
class World {
  nowMs = 1000;
  readonly clock = { ...systemClock, monotonicMs: () => this.nowMs, wallMs: () => this.nowMs };
  readonly from = this.store();
  readonly to = this.store();
  readonly old = this.gateway(this.from);
  records: Execution[] = [];
  /** The key of this one is free. */
  freed!: Execution;

  static async open(): Promise<World> {
    const world = new World();
    const { old } = world;
    for (const mode of ['protect', 'observe'] as const) await old.visit(mode);
    const [completed, large, gaveUp, resolved, freed, dead] = (await Promise.all(
      Array.from({ length: 6 }, () => world.start()),
    )) as [Execution, Execution, Execution, Execution, Execution, Execution];
    await old.complete(completed, paid());
    await old.complete(large, { kind: 'tombstone', status: 201 });
    for (const { recordId, token } of [gaveUp, resolved, freed])
      await old.leaveInDoubt({ recordId, token }, 'timeout');
    await old.resolve(
      resolved.recordId,
      resolved.token,
      { as: 'completed', completion: paid('books') },
      note,
    );
    await old.resolve(freed.recordId, freed.token, { as: 'released' }, note);
    world.records = [completed, large, gaveUp, resolved, dead];
    world.freed = freed;
    world.nowMs += 2 * lifetimes.leaseMs;
    return world;
  }

  store(id?: string): MemoryRegister {
    return new MemoryRegister(() => this.nowMs, id);
  }

  /** A gateway that was started just now. */
  gateway(register: MemoryRegister): Ledger {
    return new Ledger(register, { gatewayId: 'gateway', lifetimes, clock: this.clock });
  }

  async start(): Promise<Execution> {
    const request = newRequest();
    expect(await this.old.start(request)).toEqual({ kind: 'started' });
    return request;
  }

  copy(more: Partial<CopyOptions> = {}): Copy {
    return new Copy({ from: this.from, to: this.to, clock: this.clock, ...more });
  }

  /** A copy in which something happens at its nth call to a store. */
  copyWith(at: (call: number) => unknown): Copy {
    let calls = 0;
    const [from, to] = [this.from, this.to].map((side) => watched(side, () => at(++calls)));
    return new Copy({ from: from as CopyRegister, to: to as CopyRegister, clock: this.clock });
  }

  async states(): Promise<(CopyState | undefined)[]> {
    return [await this.from.readCopyProgress(), await this.to.readCopyProgress()].map(
      (progress) => progress?.state,
    );
  }

  async content(register: MemoryRegister): Promise<[Seen | undefined, AuditRecord[]][]> {
    const recordIds = [...this.records, this.freed].map(({ recordId }) => recordId);
    return await Promise.all(
      recordIds.map(async (id) => [await register.read(id), await register.audit(id)]),
    );
  }

  /** The same, whether or not a gateway has noted meanwhile that the owner is dead. */
  async #meaning(register: MemoryRegister): Promise<unknown[]> {
    const content = await this.content(register);
    return content.map(([seen, audit]) => {
      if (seen?.record.state !== 'executing' && seen?.record.state !== 'in_doubt') return [seen, audit];
      const { record, expiresInMs } = seen;
      return [record.token, record.ownerGaveUp, expiresInMs, audit];
    });
  }

  /** What the first start after a restart is answered. */
  async serves(register: MemoryRegister, request = newRequest()): Promise<string> {
    const ledger = this.gateway(register);
    const { kind } = await ledger.start(request).catch((error: unknown) => {
      expect(error).toBeInstanceOf(StoreClosed);
      return { kind: 'closed' };
    });
    if (kind === 'started') await ledger.release(request);
    return kind;
  }

  /** Expects that once the copy has begun, no key can be started on both stores, and none again that the old store knows. */
  async expectNoKeyTwice(): Promise<void> {
    const [, destination] = await this.states();
    if (!destination || destination === 'undone') return;
    const starts = await Promise.all([this.serves(this.from), this.serves(this.to)]);
    expect(starts).not.toEqual(['started', 'started']);
    for (const record of this.records)
      expect(await this.serves(this.to, duplicateOf(record))).not.toBe('started');
  }

  /** The source serves again. The destination may have copies, and then it stays closed. */
  async expectUndone(): Promise<void> {
    expect(await this.serves(this.from)).toBe('started');
    const isEmpty = (await this.content(this.to)).every(([seen, audit]) => !seen && audit.length === 0);
    if (!isEmpty) {
      expect(await this.serves(this.to)).toBe('closed');
      await expect(this.copy().run()).rejects.toThrow('the destination has records');
    }
    const next = isEmpty ? this.to : this.store();
    await this.copy({ to: next }).run();
    expect(await this.content(next)).toEqual(await this.content(this.from));
    expect([await this.serves(this.from), await this.serves(next)]).toEqual(['closed', 'started']);
  }

  async expectMoved(): Promise<void> {
    expect(await this.states()).toEqual(['moved', 'opened']);
    expect(await this.#meaning(this.to)).toEqual(await this.#meaning(this.from));
    expect([await this.serves(this.from), await this.serves(this.to)]).toEqual(['closed', 'started']);
  }
}

type Act = (...args: unknown[]) => unknown;

/** The same object with `call` in the place of every call of a method, those of its register too. */
const through = <T extends object>(
  object: T,
  call: (name: string, args: unknown[], act: Act) => unknown,
): T =>
  new Proxy(object, {
    get(target, name) {
      const member = Reflect.get(target, name, target);
      if (name === 'register') return through(member as object, call);
      if (typeof member !== 'function') return member;
      return (...args: unknown[]) => call(String(name), args, member.bind(target));
    },
  });

/** Calls `before` ahead of each call. It may throw. */
function watched(register: CopyRegister, before: () => unknown): CopyRegister {
  const after = async (act: Act, args: unknown[]) => {
    await before();
    return await act(...args);
  };
  return through(register, (name, args, act) => (name === 'scan' ? act(...args) : after(act, args)));
}

/** The same with other methods. */
const withMethods = (register: MemoryRegister, methods: Partial<CopyRegister & Register>): MemoryRegister =>
  through(register, (name, args, act) => ((methods[name as 'read'] as Act | undefined) ?? act)(...args));

/** The first of the two, until `isOther`. */
function switched(first: MemoryRegister, other: MemoryRegister, isOther: () => boolean): CopyRegister {
  let now = first;
  return through(first, (name, args) => {
    if (now === first && isOther()) now = other;
    return Reflect.apply(Reflect.get(now, name) as Act, now, args);
  });
}

const idOf = async (register: MemoryRegister) => (await register.readIdentity('protect'))?.id;

/** Kills a run when the source is sealed. */
const refuseRecords = (world: World) => async () => {
  if ((await world.states())[0] === 'sealed') throw new Killed();
};

/** Kills `work` ahead of each of its calls in turn, each time in a new world, and goes on there. Returns the number of calls. */
async function killedAtEachCall(
  open: () => Promise<World>,
  work: (copy: Copy) => Promise<unknown>,
  goOn: (world: World) => Promise<void>,
): Promise<number> {
  for (let last = 1; ; last++) {
    const world = await open();
    const copy = world.copyWith((call) => {
      if (call >= last) throw new Killed();
    });
    if (await isDone(work(copy))) return last - 1;
    await goOn(world);
  }
}

async function isDone(work: Promise<unknown>): Promise<boolean> {
  const error = await work.then(() => undefined).catch((why: unknown) => why);
  if (error) expect(error).toBeInstanceOf(Killed);
  return !error;
}

/** A world whose copy was killed in this state of the source, and if it is sealed, in the middle of the records. */
async function killedIn(state: CopyState): Promise<World> {
  const world = await World.open();
  let calls = 0;
  const copy = world.copyWith(async () => {
    const [source] = await world.states();
    if (source === state && ++calls > (state === 'sealed' ? 8 : 0)) throw new Killed();
  });
  expect(await isDone(copy.run())).toBe(false);
  return world;
}

describe('a copy', () => {
  it('is begun again after it was killed at any call, and nothing is started twice meanwhile', async () => {
    const calls = await killedAtEachCall(
      World.open,
      (copy) => copy.run(),
      async (world) => {
        await world.expectNoKeyTwice();
        await world.copy().run();
        await world.expectMoved();
      },
    );
    expect(calls).toBeGreaterThan(20);
  });

  it('is undone after it was killed at any call, and then begun again', async () => {
    await killedAtEachCall(
      World.open,
      (copy) => copy.run(),
      async (world) => {
        const undone = world.copy().undo();
        if ((await world.states())[0]) await undone;
        else await expect(undone).rejects.toThrow('no copy has closed the source');
        await world.expectUndone();
      },
    );
  });

  it.each(['closing', 'sealed', 'moved'] as const)(
    'that is %s can be undone, and its --undo can be killed at any call and repeated, or the copy begun again',
    async (state) => {
      for (const again of ['undo', 'run'] as const) {
        const calls = await killedAtEachCall(
          () => killedIn(state),
          (copy) => copy.undo(),
          async (world) => {
            await world.expectNoKeyTwice();
            await world.copy()[again]();
            await (again === 'run' ? world.expectMoved() : world.expectUndone());
          },
        );
        expect(calls).toBe(4);
      }
    },
  );

  it('refuses to be run again or undone after the destination was opened', async () => {
    const world = await World.open();
    await world.copy().run();
    await expect(world.copy().run()).rejects.toThrow('the source was moved');
    await expect(world.copy().undo()).rejects.toThrow('the source was moved');
    await expect(world.copy({ to: world.store() }).run()).rejects.toThrow('the source was moved');
    await world.expectMoved();
    // The new store is one as any other.
    const third = world.store();
    await world.copy({ from: world.to, to: third }).run();
    expect(await world.content(third)).toEqual(await world.content(world.from));
    expect(await world.serves(world.to)).toBe('closed');
  });

  it('that was paused at any call, while another run copied or undid, changes no progress and at most one record', async () => {
    for (const other of ['run', 'undo'] as const)
      for (let call = 2, isOver = false; !isOver; call++) {
        const world = await World.open();
        let isReplaced = false;
        let copied = 0;
        const paused = world.copyWith(async (now) => {
          const [source, destination] = await world.states();
          if (now !== call || !(other === 'run' ? destination : source)) return;
          isReplaced = true;
          await world.copy()[other]();
          copied = (await world.content(world.to)).filter(([seen]) => seen).length;
          world.nowMs += 10_000;
        });
        const error = await paused.run().catch((why: unknown) => why);
        isOver = !isReplaced && call > 10;
        if (isReplaced) expect(error).toBeInstanceOf(CopyRefused);
        if (!isReplaced || other === 'run') await world.expectMoved();
        else {
          expect((await world.content(world.to)).filter(([seen]) => seen).length - copied).toBeLessThan(2);
          expect(await world.serves(world.from)).toBe('started');
        }
      }
  });

  it('is refused if the source was emptied, replaced or restored at any call, also when it is run again', async () => {
    for (const becomes of ['emptied', 'replaced', 'restored'] as const)
      for (let call = 2; ; call++) {
        const world = await World.open();
        const now = world.store(becomes === 'restored' ? await idOf(world.from) : undefined);
        if (becomes !== 'emptied') await now.visit('protect');
        let calls = 0;
        const from = switched(world.from, now, () => ++calls >= call);
        const to = watched(world.to, () => calls++);
        const error = await world
          .copy({ from, to })
          .run()
          .catch((why: unknown) => why);
        if (!(error instanceof CopyRefused)) {
          // That was right before the opening.
          expect(call).toBeGreaterThan(20);
          await world.expectMoved();
          break;
        }
        expect(await world.to.readCopyProgress()).toMatchObject({ state: 'receiving' });
        if ((await world.content(world.to)).some(([seen]) => seen))
          for (const again of ['run', 'undo'] as const)
            await expect(world.copy({ from: now })[again]()).rejects.toThrow(CopyRefused);
        expect(await world.serves(world.to)).toBe('closed');
      }
  });

  it('never opens a destination that was emptied at any call, and then opens the source again', async () => {
    let stuck = 0;
    for (let call = 2; ; call++) {
      const world = await World.open();
      const now = world.store();
      let calls = 0;
      const to = switched(world.to, now, () => ++calls >= call);
      const error = await world
        .copy({ from: watched(world.from, () => calls++), to })
        .run()
        .catch((why) => why);
      const [source] = await world.states();
      if (error instanceof CopyRefused) {
        expect(await now.readCopyProgress()).toBeUndefined();
        if (source === 'moved') {
          stuck++;
          continue;
        }
        await world.copy({ to: now }).undo();
        expect(await world.serves(world.from)).toBe('started');
        continue;
      }
      // It was emptied before anything was in it, or after the opening.
      const opened = (await now.readCopyProgress()) ? now : world.to;
      expect(await world.content(opened)).toEqual(await world.content(world.from));
      if (opened === world.to) break;
    }
    // Right before the source becomes `moved`, or right after that.
    expect(stuck).toBeLessThan(3);
  });

  it('leaves a destination open where a key was started while it was being closed', async () => {
    const world = await World.open();
    const changeCopyProgress = async (progress: CopyProgress) => {
      if (progress.epoch === 1)
        expect(await world.gateway(world.to).start(newRequest())).toEqual({ kind: 'started' });
      return await world.to.changeCopyProgress(progress);
    };
    const to = withMethods(world.to, { changeCopyProgress });
    await expect(world.copy({ to }).run()).rejects.toThrow('the destination has records');
    expect(await world.states()).toEqual([undefined, 'undone']);
    expect(await world.serves(world.to)).toBe('started');
  });

  it('refuses to go on if the destination has another record of a key, in doubt or completed', async () => {
    for (const state of ['in_doubt', 'completed'] as const) {
      const world = await killedIn('closing');
      const { recordId } = world.records.at(-1) as Execution;
      const { record } = (await world.from.read(recordId)) as Seen;
      const other = { ...record, revision: systemRandom.token(), token: systemRandom.token(), state };
      const write = { kind: 'replace', revision: undefined, record: other, operation: 'withdraw' } as const;
      await world.to.replace(recordId, { ...write, expiresInMs: 1000 });
      await expect(world.copy().run()).rejects.toThrow(`the destination has another record of ${recordId}`);
      expect(await world.states()).toEqual(['sealed', 'receiving']);
    }
  });

  it('leaves a destination closed that does not say whether it is empty: a gateway may have come too early', async () => {
    const world = await World.open();
    let scans = 0;
    async function* scan() {
      if (++scans === 2) throw new StoreUnavailable('no reply');
      yield* world.to.scan();
    }
    await expect(world.copy({ to: withMethods(world.to, { scan }) }).run()).rejects.toThrow('no reply');
    expect(await world.serves(world.to)).toBe('closed');
    await world.copy().run();
    await world.expectMoved();
  });

  it('does not close a destination that another run opens while it reads the progress', async () => {
    const world = new World();
    await world.old.visit('protect');
    const [copied, goOn] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const changeCopyProgress = async (progress: CopyProgress) => {
      if (progress.state === 'moved') {
        copied.resolve();
        await goOn.promise;
      }
      return await world.from.changeCopyProgress(progress);
    };
    const first = world.copy({ from: withMethods(world.from, { changeCopyProgress }) }).run();
    await copied.promise;
    let reads = 0;
    const between = async () => {
      if (++reads !== 2) return;
      goOn.resolve();
      await first;
    };
    const reading = (side: MemoryRegister) =>
      withMethods(side, { readCopyProgress: () => between().then(() => side.readCopyProgress()) });
    const other = world.copy({ from: reading(world.from), to: reading(world.to) });
    await expect(other.run()).rejects.toThrow(CopyRefused);
    expect(await world.states()).toEqual(['moved', 'opened']);
    expect(await world.serves(world.to)).toBe('started');
  });

  it('waits for executions whose owners are alive, and copies what they store', async () => {
    const world = await World.open();
    const [first, second] = [await world.start(), await world.start()];
    // A reader has found this owner dead, which then showed life again.
    world.nowMs += 2 * lifetimes.leaseMs;
    await world.old.peek(second);
    await world.old.renew(second);
    await world.old.renew(first);
    const lines: string[] = [];
    const run = world.copy({ onProgress: (line) => void lines.push(line) }).run();
    await until(() => lines.length === 2);
    expect(lines[1]).toContain('waiting for 2 requests: withdraw of M-1, key ');
    expect(await world.serves(world.from)).toBe('closed');
    expect(await world.old.complete(first, paid())).toBe('ok');
    expect(await world.old.release(second)).toBe('ok');
    expect(await run).toMatchObject({ completed: 4, open: 2, cutOff: 0 });
    expect(await world.serves(world.to, duplicateOf(first))).toBe('completed');
    expect(await world.serves(world.to, duplicateOf(second))).toBe('started');
  });

  it('refuses a destination that has records, before it closes it, and the source as its own destination', async () => {
    const world = await World.open();
    await world.gateway(world.to).start(newRequest());
    await expect(world.copy().run()).rejects.toThrow('the destination has records: copy to an empty store');
    expect(await world.states()).toEqual([undefined, undefined]);
    await expect(world.copy({ to: world.from }).run()).rejects.toThrow('the destination is the source');
    const empty = world.store();
    await expect(world.copy({ from: empty, to: empty }).run()).rejects.toThrow(
      'the destination is the source',
    );
    expect(await world.serves(empty)).toBe('started');
  });

  it('refuses stores that take part in another copy', async () => {
    const world = await killedIn('sealed');
    const other = world.store();
    await expect(world.copy({ from: world.to, to: other }).run()).rejects.toThrow(
      'takes part in another copy',
    );
    await expect(world.copy({ from: other, to: world.from }).run()).rejects.toThrow(
      'takes part in another copy',
    );
    await expect(world.copy({ from: other }).run()).rejects.toThrow('the destination has records');
    // The destination was lost: another one may take its place.
    await world.copy({ to: other }).run();
    expect(await world.content(other)).toEqual(await world.content(world.from));
    await expect(world.copy().run()).rejects.toThrow('the source was moved');
    expect(await world.serves(world.to)).toBe('closed');
    await expect(world.copy().undo()).rejects.toThrow('the source was moved');
  });

  it('names a record that cannot be read, opens nothing, and can be undone', async () => {
    const world = await World.open();
    const { recordId } = world.records[0] as Execution;
    world.from.damage(recordId);
    await expect(world.copy().run()).rejects.toThrow(
      `${recordId}: the record cannot be read: it was damaged`,
    );
    expect(await world.states()).toEqual(['sealed', 'receiving']);
    await world.copy().undo();
    expect(await world.serves(world.from)).toBe('started');
  });

  it('begins again if a server was replaced during the pass', async () => {
    const world = await World.open();
    const lines: string[] = [];
    let asked = 0;
    const servers = async () => (++asked < 4 ? `server ${asked}` : 'server');
    const to = withMethods(world.to, { servers });
    const copy = world.copy({ to, onProgress: (line) => void lines.push(line) });
    expect(await copy.run()).toMatchObject({ completed: 3, open: 2 });
    expect(lines.filter((line) => line.endsWith('copying everything again'))).toHaveLength(2);
    await world.expectMoved();
  });

  it('keeps a record whose TTL somebody has removed', async () => {
    const world = await World.open();
    const [{ recordId }] = world.records as [Execution];
    const read = async (id: RecordId): Promise<Seen | undefined> => {
      const seen = await world.from.read(id);
      return seen && id === recordId ? { ...seen, expiresInMs: -1 } : seen;
    };
    await world.copy({ from: withMethods(world.from, { read }) }).run();
    expect(await world.to.read(recordId)).toMatchObject({ expiresInMs: lifetimes.inDoubtRetentionMs });
  });
});

describe('a gateway', () => {
  it('that was started on the destination too early starts nothing until it is restarted', async () => {
    const world = await killedIn('sealed');
    const [early, watching] = [world.gateway(world.to), world.gateway(world.to)];
    expect(await watching.health()).toMatchObject({ ok: false, isClosed: true });
    await expect(early.start(newRequest())).rejects.toThrow(StoreClosed);
    // It finds the owner of a copied record dead, and notes that.
    const dead = world.records.at(-1) as Execution;
    await world.copy().run();
    await world.expectMoved();
    for (const gateway of [early, watching]) {
      await expect(gateway.start(newRequest())).rejects.toThrow(StoreClosed);
      expect(gateway.refusing).toBeDefined();
      expect(await gateway.health()).toMatchObject({ ok: false, isClosed: true });
      expect(await gateway.peek(duplicateOf(dead))).toMatchObject({ kind: 'in_doubt' });
    }
  });

  it('that marks a copied record in doubt before the opening does not stop the copy', async () => {
    const world = await World.open();
    const dead = world.records.at(-1) as Execution;
    let isMarked = false;
    const copy = world.copyWith(async () => {
      if (isMarked || (await world.to.read(dead.recordId)) === undefined) return;
      isMarked = true;
      expect(await world.gateway(world.to).peek(duplicateOf(dead))).toMatchObject({ kind: 'in_doubt' });
      throw new Killed();
    });
    expect(await isDone(copy.run())).toBe(false);
    expect(await world.copy().run()).toMatchObject({ completed: 3, open: 2 });
    expect(await world.to.read(dead.recordId)).toMatchObject({ record: { state: 'in_doubt' } });
  });

  it('on the source stays closed after an --undo, and still stores what it has executed', async () => {
    const world = await World.open();
    const owner = await world.start();
    const copy = world.copy({ althoughAlive: true, to: watched(world.to, refuseRecords(world)) });
    expect(await isDone(copy.run())).toBe(false);
    await expect(world.old.start(newRequest())).rejects.toThrow(StoreClosed);
    await expect(world.old.complete(owner, paid())).rejects.toThrow(StoreClosed);
    await world.copy().undo();
    await expect(world.old.start(newRequest())).rejects.toThrow(StoreClosed);
    expect(await world.old.complete(owner, paid())).toBe('ok');
    expect(await world.serves(world.from)).toBe('started');
  });
});

it('the progress of a copy of another version is refused', () => {
  for (const text of ['', 'all', 'no 0 {}', 'all 1 {"state":"frozen"}', 'no 1 {"state":"sealed"}'])
    expect(() => decodeCopyProgress(text)).toThrow('the progress of a copy is that of another version');
});
