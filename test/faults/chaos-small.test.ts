import { it } from 'vitest';
import { expectClean, LIMIT } from './chaos/mix.ts';

it('gateways, Redis and a backend that are killed pay nothing twice', LIMIT, async () => {
  await expectClean({ store: 'redis', only: 'killed', minutes: 0.1, rate: 20 });
});
