import { it } from 'vitest';
import { expectCleanMix, MIX } from './chaos/mix.ts';

it('no fault makes a second payout: everything that can break, on sqlite', { timeout: MIX.limitMs }, () =>
  expectCleanMix('sqlite'),
);
