import { it } from 'vitest';
import { expectClean, MIX } from './chaos/mix.ts';

it('gateways, Redis and a backend that are killed pay nothing twice', { timeout: MIX.limitMs }, async () => {
  const { seed, together, recoverWithinMs } = MIX;
  const faults = { only: 'killed', minutes: 0.1, together, seed };
  await expectClean({ store: 'redis', ...faults, rate: 20, 'recover-within': recoverWithinMs });
});
