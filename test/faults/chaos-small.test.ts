import { it } from 'vitest';
import { expectClean, MIX } from './chaos/mix.ts';

it('gateways, Redis and a backend that are killed pay nothing twice', { timeout: MIX.limitMs }, async () => {
  const { seed, rate, recoverWithinMs } = MIX;
  const faults = { only: 'killed', minutes: 0.1, seed };
  await expectClean({ store: 'redis', ...faults, rate, 'recover-within': recoverWithinMs });
});
