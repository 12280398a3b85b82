import { it } from 'vitest';
import { expectClean, expectCleanMix, LIMIT } from './chaos/mix.ts';

it('no fault causes a second payout on postgres', LIMIT, () => expectCleanMix('postgres'));

it('nor does a failover to a synchronous standby', LIMIT, async () => {
  await expectClean({ store: 'postgres-standby', only: 'standby', minutes: 0.2, together: 1 });
  await expectClean({ store: 'postgres-standby', only: 'primary', minutes: 0.2, together: 1 });
});
