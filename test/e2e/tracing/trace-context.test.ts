import { randomUUID } from 'node:crypto';
import { pino } from 'pino';
import { describe, expect, test } from 'vitest';
import { withdraw } from '../../support/client.ts';
import type { MoreConfig } from '../../support/config.ts';
import { stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head, Wire } from '../../support/wire.ts';
import { embed } from '../embedding/embedded.ts';
import { startCollector } from './support/collector.ts';
import { idOf, openHeaderBackend } from './support/traced.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const PARENT = '00f067aa0ba902b7';
const VALID = `00-${TRACE}-${PARENT}-01`;
const STATE = 'rojo=00f067aa0ba902b7,congo=t61rcWkgMzE';

/** Header values that begin no trace of ours. Each is a list of the header's lines. */
const INVALID: Record<string, string[]> = {
  'sent twice': [VALID, VALID],
  'without a trace id': [`00-${'0'.repeat(32)}-${PARENT}-01`],
  'without a parent': [`00-${TRACE}-${'0'.repeat(16)}-01`],
  'version ff': [`ff-${TRACE}-${PARENT}-01`],
  'version 00 with more fields': [`${VALID}-what-comes-later`],
  'a later version that ends within a field': [`01-${TRACE}-${PARENT}-0`],
  'a later version whose flags go on': [`01-${TRACE}-${PARENT}-011`],
  'upper case': [VALID.toUpperCase()],
  'too short': [`00-${TRACE.slice(1)}-${PARENT}-01`],
  'no hexadecimal digits': [`00-${'g'.repeat(32)}-${PARENT}-01`],
  'spaces within': [`00 -${TRACE}-${PARENT}-01`],
  'a script': ['<script>alert(1)</script>'],
  empty: [''],
};

interface Received {
  /** The lines of the header that the backend got. */
  parents: string[];
  states: string[];
  /** The trace id in the log line. */
  traceId: unknown;
}

async function openSeeing(tracing: MoreConfig['tracing'], more: MoreConfig = {}) {
  const { url, seen } = await openHeaderBackend();
  const stack = await stackForTest({ upstream: { url }, ...(tracing && { tracing }), ...more });
  /** Sends a balance read with these header lines, and resolves with what backend and log got. */
  const receive = async (...fields: string[]): Promise<Received> => {
    const requestId = randomUUID();
    const wire = await Wire.open(stack.port);
    wire.write(head('GET /v2/get_balance', ALPHA, `X-Request-Id: ${requestId}`, ...fields));
    expect((await wire.answer()).status).toBe(201);
    const got = seen.at(-1)?.headersDistinct ?? {};
    const line = await until(() => stack.log.find((fields) => fields.requestId === requestId));
    return { parents: got.traceparent ?? [], states: got.tracestate ?? [], traceId: line.traceId };
  };
  return { stack, receive };
}

/** The same with a collector, to which every request is sent. */
async function openRecording(tracing: MoreConfig['tracing'] = {}, more: MoreConfig = {}) {
  const collector = await startCollector();
  const all = { endpoint: collector.url, ratio: 1, sendEveryMs: 20, ...tracing };
  return { collector, ...(await openSeeing(all, more)) };
}

const fieldsOf = (parents: string[]): string[] => [
  ...parents.map((value) => `traceparent: ${value}`),
  `tracestate: ${STATE}`,
];

describe('without tracing', () => {
  test('the backend gets what came, and the log a valid trace id', async () => {
    const { receive } = await openSeeing(undefined);
    expect(await receive()).toEqual({ parents: [], states: [], traceId: undefined });
    const kept = { parents: [VALID], states: [STATE], traceId: TRACE };
    expect(await receive(...fieldsOf([VALID]))).toEqual(kept);
    for (const [name, parents] of Object.entries(INVALID)) {
      const got = await receive(...fieldsOf(parents));
      expect({ name, ...got }).toEqual({ name, parents, states: [STATE], traceId: undefined });
    }
  });
});

describe('with begin: true', () => {
  test('the gateway begins a trace for a request without a valid one, and leaves others alone', async () => {
    const { receive } = await openSeeing({ begin: true, ratio: 0.5 });
    const kept = { parents: [VALID], states: [STATE], traceId: TRACE };
    expect(await receive(...fieldsOf([VALID]))).toEqual(kept);
    const flags = new Set<string>();
    for (let i = 0; i < 64; i++) {
      const { parents, traceId } = await receive();
      const [, id, flag = ''] = /^00-([0-9a-f]{32})-[0-9a-f]{16}-(0[01])$/.exec(parents.join()) ?? [];
      expect([parents.length, id]).toEqual([1, traceId]);
      flags.add(flag);
    }
    expect([...flags].sort()).toEqual(['00', '01']);
    const { parents, states } = await receive(...fieldsOf(['malformed']));
    expect([parents.length, parents[0]?.length, states]).toEqual([1, 55, []]);
  });
});

describe('with an endpoint', () => {
  test('a valid trace goes on, also one of a later version', async () => {
    const { collector, stack, receive } = await openRecording();
    for (const value of [VALID, `00-${TRACE}-${PARENT}-00`, `cc-${TRACE}-${PARENT}-01-what-comes-later`]) {
      const { parents, states, traceId } = await receive(...fieldsOf([value]));
      expect(parents.join()).toMatch(new RegExp(`^00-${TRACE}-(?!${PARENT})[0-9a-f]{16}-01$`));
      expect([states, traceId]).toEqual([[STATE], TRACE]);
    }
    // The trace id is random: that is passed on, and unknown flags are not.
    expect((await receive(`traceparent: 00-${TRACE}-${PARENT}-ff`)).parents.join()).toMatch(/-03$/);
    const { server } = await collector.requestSpans(
      idOf(await withdraw(stack.url, { headers: { traceparent: VALID } })),
    );
    expect([server.traceId, server.parentSpanId]).toEqual([TRACE, PARENT]);
    // An address without a path has that of OTLP.
    expect(collector.requests[0]?.path).toBe('/v1/traces');
  });

  test('any other begins a new one, and its tracestate is dropped', async () => {
    const { receive } = await openRecording();
    for (const [name, values] of Object.entries({ ...INVALID, none: [] })) {
      const { parents, states, traceId } = await receive(...fieldsOf(values));
      expect({ name, states }).toEqual({ name, states: [] });
      expect(parents.join()).toMatch(new RegExp(`^00-${traceId}-[0-9a-f]{16}-01$`));
      expect(traceId).not.toBe(TRACE);
    }
  });

  test('a tracestate is bounded, and so may be in several lines', async () => {
    const { receive } = await openRecording();
    const parent = `traceparent: ${VALID}`;
    const long = `tracestate: a=${'x'.repeat(4100)}`;
    expect((await receive(parent, 'tracestate: a=1', 'tracestate: b=2')).states).toEqual(['a=1', 'b=2']);
    expect((await receive(parent, long)).states).toEqual([]);
    expect((await receive(parent, 'tracestate: a=1', long)).states).toEqual([]);
  });

  test('Connection cannot remove the gateway’s own trace context', async () => {
    const { receive } = await openRecording();
    const { parents, traceId } = await receive('Connection: close, traceparent', `traceparent: ${VALID}`);
    expect([parents.length, traceId]).toEqual([1, TRACE]);
  });

  test('what is not recorded is passed on as not sampled, and nothing is sent to the collector', async () => {
    const { collector, stack, receive } = await openRecording({ ratio: 0 });
    expect((await receive(...fieldsOf([VALID]))).parents.join()).toMatch(
      new RegExp(`^00-${TRACE}-(?!${PARENT})[0-9a-f]{16}-00$`),
    );
    const { parents, traceId } = await receive();
    expect(parents.join()).toMatch(new RegExp(`^00-${traceId}-[0-9a-f]{16}-00$`));
    await stack.gateway.shutdown();
    expect(collector.requests).toEqual([]);
  });
});

describe.each([
  { believeSampled: 'never', behindProxy: true, believed: false },
  { believeSampled: 'proxies', behindProxy: true, believed: true },
  { believeSampled: 'proxies', behindProxy: false, believed: false },
  { believeSampled: 'always', behindProxy: false, believed: true },
] as const)('believeSampled: $believeSampled, behind a proxy: $behindProxy', (row) => {
  test(row.believed ? 'the flag that came decides' : 'the ratio decides', async () => {
    const trustedProxies = row.behindProxy ? ['loopback'] : [];
    const listen = { host: '127.0.0.1', port: 0, trustedProxies };
    for (const ratio of [0, 1]) {
      const { receive } = await openRecording({ ratio, believeSampled: row.believeSampled }, { listen });
      for (const flag of ['00', '01']) {
        const { parents } = await receive(`traceparent: 00-${TRACE}-${PARENT}-${flag}`);
        expect(parents.join().slice(-2)).toBe(row.believed ? flag : `0${ratio}`);
      }
      // Without a flag there is nothing to believe.
      expect((await receive()).parents.join().slice(-2)).toBe(`0${ratio}`);
    }
  });
});

test('idempotency() logs the trace id that came, and its handler sees it', async () => {
  const log: Record<string, unknown>[] = [];
  const logger = pino({ level: 'info' }, { write: (line: string) => void log.push(JSON.parse(line)) });
  const { post } = await embed(
    // 502 leaves the key in doubt, which is a line of its own.
    (app, protect) =>
      app.post('/payouts', protect, (req, res) => res.status(502).json({ got: req.headers.traceparent })),
    { logger },
  );
  const answer = await post('k-1', { headers: { traceparent: VALID } });
  expect(answer.json()).toEqual({ got: VALID });
  const lineOf = (msg: string) => until(() => log.find((line) => line.msg === msg));
  for (const msg of ['request', 'the outcome of an execution is unknown'])
    expect((await lineOf(msg)).traceId).toBe(TRACE);
});
