import { setImmediate as turn } from 'node:timers/promises';
import { describe, expect, it, onTestFinished } from 'vitest';
import { type Probed, ProbeQueue } from '../../src/keys/probe-queue.ts';
import type { ProbeAnswer } from '../../src/lib/exchange.ts';
import { until } from '../support/until.ts';

const REFUSED = { kind: 'refused' } as const;

/** A queue of probes that end when the test says so. */
function open({ maxProbes = 4, maxPerSecond = 1000, waitMs = 60_000 } = {}) {
  const clock = { monotonicMs: () => performance.now() };
  const queue = new ProbeQueue({ maxProbes, maxPerSecond, waitMs }, clock);
  onTestFinished(() => queue.close());
  const running = new Map<string, (answer: ProbeAnswer) => void>();
  const begun: string[] = [];
  const run = (name: string, isNew: boolean, client = 'client'): Promise<Probed> =>
    queue.run(isNew ? client : undefined, () => {
      begun.push(name);
      return new Promise((resolve) => running.set(name, resolve));
    });
  const end = async (name: string) => {
    running.get(name)?.(REFUSED);
    await turn();
  };
  return { queue, run, end, begun };
}

describe('probes', () => {
  it('of new keys take half of the connections, and those of known keys all that are left', () => {
    const { run, begun } = open();
    for (const name of ['n1', 'n2', 'n3']) void run(name, true);
    for (const name of ['k1', 'k2', 'k3']) void run(name, false);
    expect(begun).toEqual(['n1', 'n2', 'k1', 'k2']);
  });

  it('of known keys go before those of new ones that have waited longer', async () => {
    const { run, end, begun } = open({ maxProbes: 2 });
    void run('n1', true);
    void run('k1', false);
    void run('n2', true);
    void run('k2', false);
    await end('n1');
    await end('k1');
    expect(begun).toEqual(['n1', 'k1', 'k2', 'n2']);
  });

  it('of new keys are taken from each client in turn', async () => {
    const { run, end, begun } = open({ maxProbes: 2 });
    for (const name of ['a1', 'a2', 'a3', 'a4']) void run(name, true, 'a');
    for (const name of ['b1', 'b2']) void run(name, true, 'b');
    void run('c1', true, 'c');
    for (let ended = 0; ended < 6; ended++) await end(begun[ended] as string);
    expect(begun).toEqual(['a1', 'a2', 'b1', 'c1', 'a3', 'b2', 'a4']);
  });

  it('of new keys begin at most maxPerSecond times a second, and need no further request to begin later', async () => {
    const { run, begun } = open({ maxProbes: 100, maxPerSecond: 10 });
    const startedAtMs = performance.now();
    for (let i = 0; i < 12; i++) void run(`n${i}`, true);
    expect(begun).toHaveLength(10);
    void run('k', false);
    expect(begun).toContain('k');
    await until(() => begun.length === 13);
    expect(performance.now() - startedAtMs).toBeGreaterThan(190);
  });

  it('that wait too long, or when the queue is closed, end as overloaded and never begin', async () => {
    const { queue, run, end, begun } = open({ maxProbes: 2, waitMs: 30 });
    const first = run('n1', true);
    expect(await run('n2', true)).toEqual({ kind: 'overloaded' });
    const third = run('n3', true);
    queue.close();
    expect(await third).toEqual({ kind: 'overloaded' });
    await end('n1');
    expect(await first).toEqual(REFUSED);
    expect(await run('n4', true)).toEqual({ kind: 'overloaded' });
    expect(begun).toEqual(['n1']);
  });
});
