import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { type Facts, judge } from '../../../scripts/soak/judge.ts';
import type { Sample } from '../../../scripts/soak/samples.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { track } from '../../support/spawn.ts';

const SOAK = fileURLToPath(new URL('../../../scripts/soak.ts', import.meta.url));

async function soak(...args: string[]) {
  const child = track(spawn(process.execPath, [SOAK, ...args], { env: { ...process.env, ...FAST_START } }));
  if (!child.stdout || !child.stderr) throw new Error('the child has no pipes');
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'exit'),
  ]);
  return { stdout, stderr, code };
}

describe.concurrent('npm run soak', () => {
  it('prints its options', async () => {
    const [help, mistake] = await Promise.all([soak('--help'), soak('--store', 'paper')]);
    expect([help.code, mistake.code]).toEqual([0, 64]);
    expect(help.stdout).toContain('--minutes');
    expect(mistake.stderr).toMatch(/^soak: --store takes sqlite or redis\n/);
  });

  it('runs, judges and writes its report', async () => {
    const json = join(newFolder(), 'report.json');
    const run = await soak('--minutes', '0.05', '--rate', '100', '--retention', '60', '--json', json);
    expect(run).toEqual({ code: 0, stderr: '', stdout: expect.stringMatching(/\npassed\n$/) });
    const report = JSON.parse(readFileSync(json, 'utf8'));
    expect(report).toMatchObject({ rate: 100, violations: [], exitCode: 0 });
    expect(report.counts.sent).toBeGreaterThan(100);
    expect(report.ledger).toEqual({ payouts: report.counts.payouts, duplicateKeys: [], balanced: true });
    expect(report.samples[0]).toMatchObject({
      heapUsedBytes: expect.any(Number),
      pendingWrites: expect.any(Number),
    });
  });
});

describe('the verdict of a soak', () => {
  const MIB = 1024 * 1024;
  const sample = (atMs: number, more: Partial<Sample> = {}): Sample => ({
    atMs,
    ...{ rssBytes: 300 * MIB, anonymousBytes: 200 * MIB, heapUsedBytes: 50 * MIB, eventLoopLagP99Ms: 11 },
    ...{ descriptors: 90, inFlight: 3, pendingWrites: 0 },
    ...more,
  });
  const minutes = (change: (share: number) => Partial<Sample> = () => ({}), long = 30) =>
    Array.from({ length: 100 }, (_, i) => sample((i / 100) * long * 60_000, change(i / 100)));
  const good: Facts = {
    samples: minutes(),
    counts: { sent: 3, balances: 1, payouts: 1, replays: 1, wrong: {} },
    ledger: { payouts: 1, duplicateKeys: [], balanced: true },
    quiet: true,
    descriptorsBefore: 29,
    descriptorsAfter: 28,
    exitCode: 0,
  };

  it('passes if every figure is right', () => {
    expect(judge(good)).toEqual([]);
  });

  it.each<[string, Partial<Facts>, RegExp]>([
    [
      'a wrong answer',
      { counts: { ...good.counts, wrong: { 'a payout was answered 500': 2 } } },
      /500: 2 times/,
    ],
    ['no load', { counts: { ...good.counts, balances: 0 } }, /no load/],
    ['a key that was paid twice', { ledger: { ...good.ledger, duplicateKeys: [{}] } }, /more than once/],
    ['a payout without an answer', { ledger: { ...good.ledger, payouts: 2 } }, /2 payouts in the ledger, 1/],
    ['a ledger out of balance', { ledger: { ...good.ledger, balanced: false } }, /not balanced/],
    ['requests that never end', { quiet: false }, /still open/],
    ['a lost descriptor', { descriptorsAfter: 30 }, /^1 file descriptors more/],
    ['a gateway that was killed', { exitCode: 'SIGKILL' }, /exited with SIGKILL/],
    [
      'a heap that grows',
      { samples: minutes((at) => ({ heapUsedBytes: (50 + 40 * at) * MIB })) },
      /^heapUsedBytes/,
    ],
    [
      'memory that grows',
      { samples: minutes((at) => ({ anonymousBytes: (200 + 90 * at) * MIB })) },
      /^anonymous/,
    ],
    ['unreadable memory figures', { samples: minutes(() => ({ anonymousBytes: Number.NaN })) }, /^anonymous/],
  ])('with %s fails', (_what, facts, violation) => {
    const violations = judge({ ...good, ...facts });
    expect(violations).toEqual([expect.stringMatching(violation)]);
  });

  it('of two minutes ignores the memory that a process takes while it warms up', () => {
    const samples = minutes((at) => ({ anonymousBytes: (200 + 90 * at) * MIB }), 2);
    expect(judge({ ...good, samples })).toEqual([]);
  });
});
