import { randomBytes, randomUUID } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { scopeOf } from '../../../src/idempotency/fingerprint.ts';
import { withdraw } from '../../support/client.ts';
import { newFolder, run } from '../../support/command.ts';
import { parsedConfig } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import type { Stack } from '../../support/stack.ts';
import { openStackOn, type StoreKind, storeKinds, storeSections } from '../../support/stores.ts';

/** The tests of a store run one after the other. The stores run concurrently. */
const sequential = { concurrent: false };
const reason = ['--reason', 'the contract has ended'];

describe.concurrent.each(storeKinds)('records purge, while a gateway runs on %s', (kind: StoreKind) => {
  let stack: Stack;
  let config: string;
  beforeAll(async () => {
    // Redis keeps its responses encrypted here, and SQLite in clear, so that the files can be searched.
    const { store } = await storeSections(kind);
    const encryption = { keys: [{ id: 'a', secret: randomBytes(32).toString('hex') }] };
    const sections = kind === 'redis' ? { store: { ...store, encryption } } : {};
    stack = await openStackOn(kind, { log: { level: 'silent' }, ...(sections as object) });
    config = join(newFolder(), 'gateway.yaml');
    writeFileSync(config, stringify({ ...stack.config, upstream: { url: 'http://127.0.0.1:1' } }));
  });
  afterAll(() => stack?.close());

  const purge = (...args: string[]) => run(['records', 'purge', '--config', config, ...args]);
  const payouts = (key: string) => stack.sandbox.ledger.payouts({ key });
  /** What SQLite keeps on the disk. */
  function stored(): Buffer {
    const { store } = parsedConfig(stack.config);
    if (store.kind !== 'sqlite') return Buffer.alloc(0);
    return Buffer.concat(['', '-wal'].map((end) => readFileSync(join(store.path, `records.db${end}`))));
  }

  it('removes the responses of one merchant, and no key is executed again', sequential, async () => {
    const keys = Array.from({ length: 40 }, () => randomUUID());
    const bodies = await Promise.all(keys.map(async (key) => (await withdraw(stack.url, { key })).body));
    const [others, doubtful] = [randomUUID(), randomUUID()];
    const kept = await withdraw(stack.url, { key: others, secret: 'sk_sandbox_bravo' });
    expect(kept.status).toBe(201);
    await withdraw(stack.url, { key: doubtful, fault: 'execute-then-reset' });

    const tried = await purge('--merchant', 'M-ALPHA', ...reason, '--dry-run');
    expect(tried.code).toBe(1);
    expect(tried.stdout).toMatch(/^40 +responses would be removed$/m);
    expect((await withdraw(stack.url, { key: keys[0] as string })).body).toEqual(bodies[0]);

    // Payouts go on while it runs.
    let running = true;
    const during: string[] = [];
    const traffic = (async () => {
      while (running) {
        const key = randomUUID();
        during.push(key);
        expect((await withdraw(stack.url, { key })).status).toBe(201);
        expect([201, 409]).toContain((await withdraw(stack.url, { key })).status);
      }
    })();
    const purged = await purge('--merchant', 'M-ALPHA', ...reason, '--by', 'ada');
    running = false;
    await traffic;

    const bytes = stored();
    for (const body of bodies) expect(bytes.includes(body)).toBe(false);
    expect(purged.stderr).toMatch(/records were left\n$/);
    expect(purged.code).toBe(1);
    const scope = scopeOf('M-ALPHA', doubtful);
    expect(purged.stdout).toMatch(new RegExp(`^left ${scope} {2}in_doubt, withdraw, key ${doubtful}$`, 'm'));
    expect(Number(/^(\d+) +responses removed$/m.exec(purged.stdout)?.[1])).toBeGreaterThanOrEqual(40);
    for (const key of keys) {
      expectProblem(await withdraw(stack.url, { key }), { status: 409, code: 'response_not_stored' });
      expectProblem(await withdraw(stack.url, { key, amount: 7 }), {
        status: 422,
        code: 'idempotency_key_reused',
      });
    }
    for (const key of [...keys, ...during, doubtful]) expect(payouts(key)).toBe(1);
    const replay = await withdraw(stack.url, { key: others, secret: 'sk_sandbox_bravo' });
    expect(replay.body).toEqual(kept.body);

    const show = ['records', 'show', '--config', config, '--merchant', 'M-ALPHA', '--key', keys[0] as string];
    const { stdout } = await run(show);
    expect(stdout).toMatch(/^response +not stored$/m);
    expect(stdout).toMatch(/ada +completed since .* purged +the contract has ended$/m);
  });

  it('leaves no byte of a response on the disk', sequential, async () => {
    const key = randomUUID();
    const { body } = await withdraw(stack.url, { key });
    if (kind === 'sqlite') expect(stored().includes(body)).toBe(true);
    expect((await purge('--merchant', 'M-ALPHA', ...reason)).code).toBe(1);
    expect(stored().includes(body)).toBe(false);
    expect(payouts(key)).toBe(1);
  });

  it(
    'succeeds when nothing is left, and refuses wrong arguments and unknown merchants',
    sequential,
    async () => {
      await withdraw(stack.url, { key: randomUUID(), secret: 'sk_sandbox_bravo' });
      const bravo = ['--merchant', 'M-BRAVO', ...reason];
      const [first, second] = [await purge(...bravo), await purge(...bravo)];
      expect([first.code, second.code]).toEqual([0, 0]);
      // On a slow machine it tells its progress.
      expect(first.stderr + second.stderr).not.toContain('oncegate:');
      expect(second.stdout).toMatch(/^0 +responses removed\n2 +completed, had no response$/m);
      const unknown = await purge('--merchant', 'M-NOBODY', ...reason);
      expect(unknown.code).toBe(1);
      expect(unknown.stderr).toMatch(/oncegate: there are no records of M-NOBODY\n$/);
      const wrong = [reason, ['--merchant', 'M-BRAVO'], ['--merchant', 'M-BRAVO', '--reason', ' ']];
      for (const args of wrong) expect((await purge(...args)).code).toBe(64);
    },
  );
});
