import { describe, expect, it } from 'vitest';
import { LEASE_MS, play } from './scenario.ts';

/** Another gateway looks when the owner's lease has ended. */
const tooLate = { gateway: 1, atMs: 1.2 * LEASE_MS };

describe('an owner', () => {
  it('renews its lease while it runs: a duplicate finds it in flight for longer than a lease', async () => {
    const { told, violations } = await play({
      backend: [['pays', 2 * LEASE_MS]],
      requests: [{}, { gateway: 1, atMs: 1.8 * LEASE_MS }],
    });
    expect(told).toEqual([
      'key-0/1.0 ← in_flight',
      'backend executes key-0/0.0: payout 1',
      'key-0/0.0 ← executed 201 payout 1, complete, stored',
    ]);
    expect(violations).toEqual([]);
  });

  it('stops renewing when it has ended', async () => {
    const { history } = await play({
      backend: [['pays', LEASE_MS]],
      requests: [{}, { atMs: 3 * LEASE_MS }],
    });
    const ended = history.indexOf('key-0/0.0 ← executed 201 payout 1, complete, stored');
    expect(history.indexOf('gateway 0.0: renew sent')).toBeLessThan(ended);
    expect(history.lastIndexOf('gateway 0.0: renew sent')).toBeLessThan(ended);
  });

  it('that died before it sent anything leaves its key in doubt, and no duplicate runs', async () => {
    const { told, violations } = await play({
      requests: [{}, tooLate],
      faults: [{ step: 'connecting', kind: 'kill', restartAfterMs: 1000 }],
    });
    expect(told).toEqual(['key-0/1.0 ← in_doubt']);
    expect(violations).toEqual([]);
  });

  it('that was paused after it sent leaves its key in doubt until it completes after all', async () => {
    const { told, violations } = await play({
      requests: [{}, tooLate, { gateway: 1, atMs: 3 * LEASE_MS }],
      faults: [{ step: 'request sent', kind: 'freeze', clocks: 'both run', ms: 2 * LEASE_MS }],
    });
    expect(told).toEqual([
      'backend executes key-0/0.0: payout 1',
      'key-0/1.0 ← in_doubt',
      'key-0/0.0 ← executed 201 payout 1, complete, stored',
      'key-0/2.0 ← replayed 201 payout 1',
    ]);
    expect(violations).toEqual([]);
  });
});

describe('an owner that was paused between its start and the first byte', () => {
  const paused = { step: 'connecting', kind: 'freeze', clocks: 'both run', ms: 2 * LEASE_MS } as const;

  it('does not send when its key was restarted', async () => {
    const { told, reached, violations } = await play({
      inDoubt: 'retry',
      requests: [{}, tooLate],
      faults: [paused],
    });
    expect(told).toEqual([
      'backend executes key-0/1.0: payout 1',
      'key-0/1.0 ← executed 201 payout 1, complete, stored',
      'key-0/0.0 ← executed not_sent, release',
    ]);
    // It releases under its own token, so the restarted execution keeps the key.
    expect([reached.get('fenced'), reached.get('stale release')]).toEqual([1, 1]);
    expect(violations).toEqual([]);
  });

  it('does not send when an operator says that it was released', async () => {
    const { told, reached, violations } = await play({
      requests: [{}, { gateway: 1, atMs: 1.5 * LEASE_MS }],
      operators: [tooLate],
      faults: [paused],
    });
    expect(told).toEqual([
      'an operator is told done',
      'backend executes key-0/1.0: payout 1',
      'key-0/1.0 ← executed 201 payout 1, complete, stored',
      'key-0/0.0 ← executed not_sent, release',
    ]);
    expect(reached.get('stale release')).toBe(1);
    expect(violations).toEqual([]);
  });
});

describe('two layers', () => {
  it('on one store execute once, and both replay', async () => {
    const { told, violations } = await play({
      layers: { name: 'application', haveOneStore: true },
      requests: [{}, { gateway: 1, atMs: LEASE_MS }],
    });
    expect(told).toEqual([
      'backend executes key-0/0.0: payout 1',
      'behind: key-0/0.0 ← executed 201 payout 1, complete, stored',
      'key-0/0.0 ← executed 201 payout 1, complete, stored',
      'key-0/1.0 ← replayed 201 payout 1',
    ]);
    expect(violations).toEqual([]);
  });

  it('with one name and one store are a circle: it is refused, and the key stays free', async () => {
    const { told, reached } = await play({
      layers: { name: 'gateway', haveOneStore: true },
      requests: [{}],
    });
    expect(told).toEqual([expect.stringMatching(/← executed 508 .*loop_detected.*, release$/)]);
    expect(reached.get('refused loop')).toBeGreaterThan(0);
  });
});
