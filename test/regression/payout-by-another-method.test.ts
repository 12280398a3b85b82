/** A payout by PUT or GET, or in the body of a WebSocket handshake, passed the engine by, and was executed again by its retry. */
import { expect, it } from 'vitest';
import { eachRowInTurn } from '../support/each-row.ts';
import { legacyBackendForFile, RESET } from '../support/legacy-backend.ts';
import { payoutBody } from '../support/payout.ts';
import { stackForFile } from '../support/stack.ts';
import { ALPHA, chunk, codeOf, HANDSHAKE, head, LAST_CHUNK, request, Wire } from '../support/wire.ts';

const PAYOUT = JSON.stringify(payoutBody(5));
const METHODS = ['PUT', 'PATCH', 'DELETE', 'GET', 'OPTIONS'];
const rows = [
  ...METHODS.map((method) => ({ method })),
  ...METHODS.map((method) => ({ method, chunked: true })),
];
const handshakes = ['GET', 'POST'].flatMap((method) => [
  { method, handshake: true },
  { method, handshake: true, chunked: true },
]);

const { url, executions } = await legacyBackendForFile();
const { port } = await stackForFile({ upstream: { url } });

it('a payout by any method, and in the body of a handshake, is executed once for its key', async () => {
  await eachRowInTurn([...rows, ...handshakes], async (row) => {
    const { method, chunked = false, handshake = false } = { chunked: false, handshake: false, ...row };
    const key = JSON.stringify(row).replaceAll(/\W/g, '-');
    const send = async (...more: string[]) => {
      const fields = [ALPHA, 'Content-Type: application/json', `x-service-idempotency: ${key}`, ...more];
      if (handshake) fields.push(...HANDSHAKE);
      const line = `${method} /v1/index.php`;
      const wire = await Wire.open(port);
      wire.write(
        chunked
          ? head(line, ...fields, 'Transfer-Encoding: chunked') + chunk(PAYOUT) + LAST_CHUNK
          : request(line, fields, PAYOUT),
      );
      const answer = await wire.answer();
      return `${answer.status} ${codeOf(answer)}`;
    };
    const lost = Object.entries(RESET).map(([name, value]) => `${name}: ${value}`);
    expect([await send(...lost), await send()]).toEqual(['502 outcome_unknown', '409 outcome_unknown']);
    const own = executions.filter((execution) => execution.key === key);
    expect(own).toMatchObject([{ method, bytes: PAYOUT.length }]);
  });
});

it('another method without a body or a key is passed on', async () => {
  const wire = (await Wire.open(port)).write(head('GET /v1/index.php', ALPHA));
  expect((await wire.answer()).status).toBe(201);
  expect(executions.filter(({ key }) => key === undefined)).toHaveLength(1);
});
