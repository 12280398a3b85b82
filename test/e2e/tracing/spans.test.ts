import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { send, type Withdrawal, withdraw } from '../../support/client.ts';
import { eachRowInTurn } from '../../support/each-row.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head, payoutOf, Wire } from '../../support/wire.ts';
import type { CollectedSpan } from './support/collector.ts';
import { idOf, openHeaderBackend, openTraced } from './support/traced.ts';

/** Each step with its result, or with the status or the error of its request to the backend. */
const resultsOf = (steps: CollectedSpan[]) =>
  steps.map(({ name, attributes }) => [
    name,
    attributes['oncegate.result'] ?? attributes['error.type'] ?? attributes['http.response.status_code'],
  ]);

test('a payout and its replay: what each of them did, and nothing secret', async () => {
  const { stack, collector } = await openTraced({ tracing: { serviceName: 'payments-edge' } });
  const key = randomUUID();
  const paid = await withdraw(stack.url, { key });
  const { server, steps } = await collector.requestSpans(idOf(paid));
  expect(resultsOf(steps)).toEqual([
    ['authenticate', 'merchant'],
    ['start', 'started'],
    ['upstream', 201],
    ['complete', 'ok'],
  ]);
  expect([server.name, server.kind, server.status, server.parentSpanId]).toEqual([
    ...['POST /v1/index.php', 2, 0, undefined],
  ]);
  expect(server.resource).toMatchObject({ 'service.name': 'payments-edge' });
  expect(server.attributes).toEqual({
    'http.request.method': 'POST',
    'url.scheme': 'http',
    'url.path': '/v1/index.php',
    'http.route': '/v1/index.php',
    'http.response.status_code': 201,
    'network.protocol.version': '1.1',
    'client.address': '127.0.0.1',
    'oncegate.request_id': idOf(paid),
    'oncegate.merchant': 'M-ALPHA',
    'oncegate.operation': 'withdraw',
    'oncegate.outcome': 'executed',
    'oncegate.replayed': false,
    'oncegate.record_id': expect.stringMatching(/^[0-9a-f]{16}$/),
  });
  for (const step of steps) {
    expect(step.traceId).toBe(server.traceId);
    expect(step.startNs >= server.startNs && step.endNs <= server.endNs).toBe(true);
  }
  const upstream = steps[2] as CollectedSpan;
  expect([upstream.kind, upstream.attributes['url.full']]).toEqual([3, `${stack.sandbox.url}/v1/index.php`]);

  const replayed = await collector.requestSpans(idOf(await withdraw(stack.url, { key })));
  expect(resultsOf(replayed.steps)).toEqual([
    ['authenticate', 'merchant'],
    ['start', 'completed'],
  ]);
  expect(replayed.server.attributes['oncegate.replayed']).toBe(true);
  expect(replayed.server.traceId).not.toBe(server.traceId);

  await send(stack.url, {
    path: `/v9/accounts/0123456789?key=${key}&secret=sk_sandbox_alpha`,
    headers: { authorization: 'Bearer sk_sandbox_alpha', 'user-agent': 'sk_sandbox_alpha' },
  });
  await until(() => collector.spans.some(({ name }) => name === 'GET'));
  for (const secret of [key, 'sk_sandbox', 'Bearer', '0123456789', 'account_number', 'secret='])
    expect(collector.text).not.toContain(secret);
});

const AUTHENTICATED = ['authenticate', 'merchant'];
const STARTED = ['start', 'started'];
const IN_DOUBT = ['mark_in_doubt', 'ended'];
const LOST = { key: 'lost', fault: 'execute-then-reset' };

/** `failed`: the request is an error of the server, and not a mistake of its merchant. */
const rows: [payout: Withdrawal, steps: unknown[][], failed: boolean][] = [
  [{ secret: 'sk_nobody' }, [['authenticate', 'invalid_key']], false],
  [{ key: 'ä' }, [AUTHENTICATED], false],
  [
    { key: '404', fault: 'status=404' },
    [AUTHENTICATED, STARTED, ['upstream', '404'], ['complete', 'ok']],
    false,
  ],
  [{ key: '503', fault: 'status=503' }, [AUTHENTICATED, STARTED, ['upstream', '503'], IN_DOUBT], true],
  [LOST, [AUTHENTICATED, STARTED, ['upstream', 'connection'], IN_DOUBT], true],
  [LOST, [AUTHENTICATED, ['start', 'in_doubt']], false],
];

test('a request that fails: its steps, which of them failed, and whether the request did', async () => {
  const { stack, collector } = await openTraced();
  await eachRowInTurn(rows, async ([payout, expected, failed]) => {
    const { server, steps } = await collector.requestSpans(idOf(await withdraw(stack.url, payout)));
    expect(resultsOf(steps)).toEqual(expected);
    // 2: error.
    expect(server.status === 2).toBe(failed);
    expect(steps.filter(({ status }) => status === 2)).toEqual(
      steps.filter(({ name }) => name === 'upstream'),
    );
  });
  // A line about the execution names the trace too.
  const line = stack.log.findLast(({ msg }) => msg === 'the outcome of an execution is unknown');
  const lost = collector.spans.findLast(({ attributes }) => attributes['error.type'] === 'outcome_unknown');
  expect([line?.traceId, lost?.status]).toEqual([lost?.traceId, 2]);
});

test('a merchant who leaves: the spans end when the execution does', async () => {
  const { stack, collector } = await openTraced();
  const requestId = 'left-early-1';
  const wire = await Wire.open(stack.port);
  wire.write(payoutOf('left', `X-Request-Id: ${requestId}`, 'X-Sandbox-Fault: delay=60000'));
  await until(() => stack.sandbox.requests.ofKey('left') === 1);
  wire.socket.resetAndDestroy();
  // Another request is sent meanwhile: nothing of the first one is exported before it ends.
  const other = await withdraw(stack.url, { secret: 'sk_nobody' });
  await collector.requestSpans(idOf(other));
  expect(collector.spans.some(({ name }) => name === 'upstream')).toBe(false);
  stack.sandbox.endDelays('left');
  const { server, steps } = await collector.requestSpans(requestId);
  expect(resultsOf(steps).slice(1)).toEqual([
    ['start', 'started'],
    ['upstream', 201],
    ['complete', 'ok'],
  ]);
  expect(server.attributes).toMatchObject({ 'oncegate.outcome': 'executed', 'oncegate.merchant_gone': true });
  expect([server.status, server.attributes['http.response.status_code']]).toEqual([0, undefined]);
});

test('a duplicate that waits, and a request that queues for a slot', async () => {
  const { stack, collector } = await openTraced({ upstream: { maxConnections: 1 } });
  const first = withdraw(stack.url, { key: 'one', fault: 'delay=60000' });
  await until(() => stack.sandbox.requests.ofKey('one') === 1);
  const duplicate = withdraw(stack.url, { key: 'one' });
  const queued = withdraw(stack.url, { key: 'two' });
  await until(async () => {
    const text = await stack.gateway.metrics.text();
    return /^oncegate_waiting 1$/m.test(text) && /^oncegate_upstream_slots_queued 1$/m.test(text);
  });
  stack.sandbox.endDelays('one');
  await first;
  const waited = await collector.requestSpans(idOf(await duplicate));
  expect(resultsOf(waited.steps).slice(1)).toEqual([['wait', 'replayed']]);
  const last = await collector.requestSpans(idOf(await queued));
  expect(resultsOf(last.steps).slice(1)).toEqual([
    ['peek', 'absent'],
    ['queue', 'slot'],
    ['start', 'started'],
    ['upstream', 201],
    ['complete', 'ok'],
  ]);
});

test('the backend gets the span of the step that sends to it, on every path', async () => {
  const { url, seen } = await openHeaderBackend();
  const { stack, collector } = await openTraced({ upstream: { url } });
  const authorization = 'Bearer sk_sandbox_alpha';
  const ids = [
    idOf(await withdraw(stack.url, { key: randomUUID() })),
    idOf(await withdraw(stack.url)),
    idOf(await send(stack.url, { path: '/v2/get_balance', headers: { authorization } })),
    idOf(await send(stack.url, { path: '/v3/passed-through', headers: { authorization } })),
    'socket-1',
  ];
  const wire = await Wire.open(stack.port);
  const handshake = ['Connection: Upgrade', 'Upgrade: websocket', 'X-Request-Id: socket-1'];
  wire.write(head('GET /v3/ws', ALPHA, ...handshake));
  await wire.hears('101');
  // A WebSocket's spans end when it is closed.
  wire.socket.destroy();
  for (const [i, id] of ids.entries()) {
    const { server, steps } = await collector.requestSpans(id);
    const upstream = steps.find(({ name }) => name === 'upstream');
    expect(upstream?.attributes['http.response.status_code']).toBe(id === 'socket-1' ? 101 : 201);
    expect(seen[i]?.headers.traceparent).toBe(`00-${server.traceId}-${upstream?.spanId}-01`);
    expect(stack.log.find(({ requestId }) => requestId === id)?.traceId).toBe(server.traceId);
  }
});

test('a lookup and a probe of a secret key are traces of their own', async () => {
  const seen: Record<string, unknown> = {};
  const url = await httpBackend((req, res) => {
    const [path = ''] = (req.url ?? '').split('?');
    seen[path] = req.headers.traceparent;
    // A payout is lost.
    if (req.method === 'POST') res.destroy();
    else res.writeHead(200).end('{"success":true,"data":{"merchant_code":"M-A"}}');
  });
  const lookup = { path: '/v1/transactions/{merchant}?key={key}', completed: [200], firstAfterMs: 10 };
  const match = { method: 'POST', path: '/v1/index.php' };
  const { collector, stack } = await openTraced({
    upstream: { url },
    auth: { keys: { source: 'upstream' } },
    operations: [{ name: 'withdraw', match, idempotency: { inDoubt: 'lookup', lookup } }],
  });
  const key = randomUUID();
  const lost = idOf(await withdraw(stack.url, { key }));
  const [probed, lookedUp] = await until(() => {
    const found = ['key_probe', 'lookup'].map((name) => collector.spans.find((span) => span.name === name));
    return found.includes(undefined) ? undefined : (found as CollectedSpan[]);
  });
  expect(seen['/v2/get_balance']).toBe(`00-${probed?.traceId}-${probed?.spanId}-01`);
  expect(seen['/v1/transactions/M-A']).toBe(`00-${lookedUp?.traceId}-${lookedUp?.spanId}-01`);
  expect(lookedUp?.attributes['url.full']).toBe(`${url}/v1/transactions/{merchant}`);
  const { server } = await collector.requestSpans(lost);
  expect(new Set([server.traceId, probed?.traceId, lookedUp?.traceId]).size).toBe(3);
  expect(collector.text).not.toContain(key);
});
