import { expect, it } from 'vitest';
import { temporaryFolder, testConfig } from '../../support/config.ts';
import { spawnGateway } from '../../support/spawn.ts';

it('a gateway that rests collects no garbage for that, so that V8 keeps its compiled code', async () => {
  const gateway = await spawnGateway(
    testConfig(temporaryFolder(), 'http://127.0.0.1:9'),
    {},
    { flags: ['--trace-memory-reducer'] },
  );
  // V8 looks eight seconds after a collection, and the start makes one.
  const [looked = ''] = await gateway.printed(/Memory reducer: /);
  expect(looked).toMatch(/low alloc|high alloc/);
  expect(await gateway.end()).toBe(0);
  expect(gateway.output()).not.toMatch(/Memory reducer: (?:waiting|started)/);
});
