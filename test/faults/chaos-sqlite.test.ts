import { it } from 'vitest';
import { expectCleanMix, MIX } from './chaos/mix.ts';

it('no fault causes a second payout on sqlite', { timeout: MIX.limitMs }, () => expectCleanMix('sqlite'));
