/**
 * Loaded before the gateway's own command (`node --import`): lets the suite end the process exactly between two steps.
 * The gateway under test is the one that is delivered, and knows nothing of this.
 */
import diagnostics from 'node:diagnostics_channel';
import { LmdbStore } from '../../../src/idempotency/stores/lmdb/lmdb-store.ts';
import { RedisStore } from '../../../src/idempotency/stores/redis/redis-store.ts';
import type { Arm, CrashPoint } from './crash-point.ts';
import './leash.ts';

let armed: Arm['crashAt'] = 'nowhere';

function reached(point: CrashPoint): void {
  if (armed !== point) return;
  process.kill(process.pid, 'SIGKILL');
  // The signal is delivered before the system call returns; nothing runs behind this line.
  for (;;);
}

for (const { prototype } of [LmdbStore, RedisStore]) {
  const { claim, begin, settle } = prototype;
  prototype.claim = async function (request) {
    const claimed = await claim.call(this as never, request);
    if (claimed.kind === 'claimed') reached('after_claim');
    return claimed;
  };
  prototype.begin = async function (owner) {
    const begun = await begin.call(this as never, owner);
    if (begun === 'ok') reached('after_begin');
    return begun;
  };
  prototype.settle = async function (owner, settlement) {
    reached('before_settle');
    const settled = await settle.call(this as never, owner, settlement);
    reached('after_settle');
    return settled;
  };
}
// Of requests with a body, published when its last byte was written.
diagnostics.subscribe('undici:request:bodySent', () => reached('after_send'));

process.on('message', ({ crashAt }: Arm) => {
  armed = crashAt;
});
process.channel?.unref();
