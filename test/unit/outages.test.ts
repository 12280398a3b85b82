import { expect, it } from 'vitest';
import { Ledger } from '../../src/ledger/ledger.ts';
import { measured } from '../../src/ledger/measured.ts';
import { Outages } from '../../src/ledger/outages.ts';
import { systemClock } from '../../src/lib/clock.ts';
import { StoreUnavailable } from '../../src/store/types.ts';
import { emitTo } from '../support/emit.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import { newRequest } from '../support/requests.ts';

/** A register that the test takes away, or whose disk it fills. */
class Breakable extends MemoryRegister {
  state: 'ok' | 'lost' | 'full' = 'ok';
  asked = 0;
  refusing: string | undefined;

  override async health() {
    this.asked++;
    return this.state === 'ok' ? await super.health() : { ok: false, detail: this.state, warnings: [] };
  }

  override read(...args: Parameters<MemoryRegister['read']>) {
    return this.state === 'lost' ? Promise.reject(new StoreUnavailable('lost')) : super.read(...args);
  }

  override create(...args: Parameters<MemoryRegister['create']>) {
    return this.state === 'ok' ? super.create(...args) : Promise.reject(new StoreUnavailable(this.state));
  }
}

function watched() {
  const time = { nowMs: 0, act: () => {} };
  const clock = {
    ...systemClock,
    monotonicMs: () => time.nowMs,
    after(_ms: number, act: () => void) {
      time.act = act;
      return () => {
        time.act = () => {};
      };
    },
  };
  const register = new Breakable(() => time.nowMs);
  const lifetimes = { leaseMs: 10, retentionMs: 100, inDoubtRetentionMs: 1000 };
  const ledger = new Ledger(register, { gatewayId: 'here', lifetimes, clock });
  const lines: string[] = [];
  const emit = emitTo({
    store_lost: ({ reason }) => lines.push(`lost: ${reason}`),
    store_refuses: ({ reason }) => lines.push(`refuses: ${reason}`),
    store_works: ({ lastedMs }) => lines.push(`works: ${lastedMs}`),
  });
  const outages = new Outages(ledger, clock, emit);
  const store = measured(ledger, clock, emit, undefined, (startedMs) => outages.failed(startedMs));
  /** Lets time pass in steps, with some requests in each. Returns the new lines. */
  const pass = async (ms: number, requests = 20) => {
    for (const endMs = time.nowMs + ms; time.nowMs < endMs; ) {
      time.nowMs += 250;
      time.act();
      await Promise.allSettled(Array.from({ length: requests }, () => store.start(newRequest())));
      await new Promise(setImmediate);
    }
    return lines.splice(0);
  };
  return { register, store, outages, time, pass };
}

it('an outage of the store has one line when it begins and one when it has ended, whatever the load', async () => {
  for (const requests of [0, 1, 100]) {
    const { register, pass } = watched();
    expect(await pass(1000, requests)).toEqual([]);
    for (const [state, begins] of [
      ['lost', 'lost: lost'],
      ['full', 'refuses: full'],
    ] as const) {
      register.state = state;
      // An idle gateway has no command that fails: the register knows.
      if (requests === 0) register.refusing = state;
      expect(await pass(6000, requests)).toEqual([begins]);
      register.state = 'ok';
      register.refusing = undefined;
      expect(await pass(500, requests)).toEqual([]);
      expect(await pass(3000, requests)).toEqual([expect.stringMatching(/^works: 5\d\d\d$/)]);
    }
  }
});

it('a store that answers again, but goes on to refuse writes, has a line for that, and one when all is over', async () => {
  const { register, outages, pass } = watched();
  register.state = 'lost';
  expect(await pass(1000)).toEqual(['lost: lost']);
  register.state = 'full';
  expect(await pass(9000)).toEqual([]);
  expect(await pass(2000)).toEqual(['refuses: full']);
  register.state = 'lost';
  expect(await pass(1000)).toEqual(['lost: lost']);
  register.state = 'ok';
  expect(await pass(3000)).toEqual([expect.stringMatching(/^works: 12\d\d\d$/)]);
  outages.close();
  register.state = 'lost';
  expect(await pass(1000)).toEqual([]);
});

it('a store that comes back, and refuses writes until its replicas have caught up, has one line for lost and one for back', async () => {
  const { register, pass } = watched();
  for (let n = 0; n < 2; n++) {
    register.state = 'lost';
    expect(await pass(12_000)).toEqual(['lost: lost']);
    register.state = 'full';
    expect(await pass(6000)).toEqual([]);
    register.state = 'ok';
    expect(await pass(3000)).toEqual([expect.stringMatching(/^works: 1[78]\d\d\d$/)]);
  }
});

it('an outage begins when the first command that failed was sent, and not when its time limit had passed', async () => {
  const { register, store, time, pass } = watched();
  const unanswered = Promise.withResolvers<never>();
  register.create = () => unanswered.promise;
  time.nowMs = 1000;
  const start = store.start(newRequest());
  register.state = 'lost';
  time.nowMs = 6000;
  unanswered.reject(new StoreUnavailable('no answer within 5000 ms'));
  await expect(start).rejects.toThrow('no answer');
  expect(await pass(250, 0)).toEqual(['lost: lost']);
  register.state = 'ok';
  expect(await pass(2000, 0)).toEqual([expect.stringMatching(/^works: 5\d\d\d$/)]);
});

it('commands that fail while the store works are no outage, and it is asked at most four times a second', async () => {
  const { register, pass } = watched();
  register.create = () => Promise.reject(new StoreUnavailable('no answer within 500 ms'));
  expect(await pass(5000, 100)).toEqual([]);
  expect(register.asked).toBeLessThanOrEqual(21);
});

it('a store that takes one write of two has one line until it takes all', async () => {
  const { register, pass } = watched();
  const lines: string[] = [];
  for (let n = 0; n < 20; n++) {
    register.state = n % 2 === 0 ? 'full' : 'ok';
    lines.push(...(await pass(500)));
  }
  expect(lines).toEqual(['refuses: full']);
  expect(await pass(2000)).toEqual([expect.stringMatching(/^works: 9\d\d\d$/)]);
});
