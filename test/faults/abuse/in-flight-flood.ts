import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { configFor, openSandbox, startGateway } from '../../e2e/process/gateways.ts';
import { send } from '../../support/client.ts';
import { printFigures } from '../../support/duration.ts';
import { head } from '../../support/wire.ts';
import { Flood, median } from './flood.ts';

const ROOM = 16;
const BACKEND_MS = 200;
const PHASE_MS = 600;
/** One good round of several is enough: noise slows down some rounds, but an effect of the flood shows in every round. */
const ROUNDS = 3;

test('requests over limits.inFlight are refused at once, and do not slow down the accepted ones', async () => {
  const sandbox = await openSandbox();
  const gateway = await startGateway(configFor(sandbox, { limits: { inFlight: ROOM } }));
  const slow = {
    path: '/v2/get_balance',
    headers: { Authorization: 'Bearer sk_sandbox_alpha', 'X-Sandbox-Fault': `delay=${BACKEND_MS}` },
  };
  /** Sends requests up to limits.inFlight; returns the latencies of the accepted ones. */
  const fill = async (): Promise<number[]> => {
    const inside: number[] = [];
    const endMs = performance.now() + PHASE_MS;
    const merchant = async () => {
      while (performance.now() < endMs) {
        const startedMs = performance.now();
        const { status } = await send(gateway.url, slow);
        if (status === 200) inside.push(performance.now() - startedMs);
        else await sleep(5);
      }
    };
    await Promise.all(Array.from({ length: ROOM }, merchant));
    return inside;
  };
  // Without credentials, so that a request that is accepted for a moment is refused next.
  const next = () => Buffer.from(head('GET /v3/echo'));
  const round = async () => {
    const alone = await fill();
    const reached = sandbox.requests.total();
    const filling = fill();
    await sleep(BACKEND_MS / 4);
    const flood = new Flood(gateway.port, { connections: 24, next });
    const flooded = await filling;
    const { statuses, latenciesMs } = await flood.stop();
    expect(sandbox.requests.total() - reached).toBe(flooded.length);
    expect(Object.keys(statuses).filter((status) => !['401', '503'].includes(status))).toEqual([]);
    expect(statuses[503]).toBeGreaterThan(ROOM);
    return {
      slower: median(flooded) / median(alone),
      refusedMs: median(latenciesMs),
      refused: statuses[503] ?? 0,
    };
  };
  await fill();
  const rounds: Awaited<ReturnType<typeof round>>[] = [];
  const isGood = () => rounds.some(({ slower, refusedMs }) => slower < 2 && refusedMs < BACKEND_MS / 4);
  while (rounds.length < ROUNDS && !isGood()) rounds.push(await round());
  printFigures('flood over limits.inFlight', rounds);
  expect(isGood(), JSON.stringify(rounds)).toBe(true);
});
