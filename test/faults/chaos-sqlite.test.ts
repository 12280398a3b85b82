import { it } from 'vitest';
import { expectCleanMix, LIMIT } from './chaos/mix.ts';

it('no fault causes a second payout on sqlite', LIMIT, () => expectCleanMix('sqlite'));
