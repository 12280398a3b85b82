import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { httpBackend } from '../../support/backend.ts';
import { send, withdraw } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { payoutBody } from '../../support/payout.ts';
import { gatewayForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, head, request, Wire } from '../../support/wire.ts';
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
    'oncegate.scope': expect.stringMatching(/^[0-9a-f]{16}$/),
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

test('refusals: the merchant’s mistakes are no errors of the server', async () => {
  const { stack, collector } = await openTraced();
  const refused = await collector.requestSpans(idOf(await withdraw(stack.url, { secret: 'sk_nobody' })));
  expect(resultsOf(refused.steps)).toEqual([['authenticate', 'invalid_key']]);
  expect([refused.server.name, refused.server.status]).toEqual(['POST', 0]);
  const invalid = await collector.requestSpans(idOf(await withdraw(stack.url, { key: 'ä' })));
  expect([invalid.server.attributes['oncegate.outcome'], invalid.server.status]).toEqual([
    ...['idempotency_key_invalid', 0],
  ]);
});

test('a payout in doubt, and its retry', async () => {
  const { stack, collector } = await openTraced();
  const key = randomUUID();
  const fault = 'execute-then-reset';
  const lost = await collector.requestSpans(idOf(await withdraw(stack.url, { key, fault })));
  expect(resultsOf(lost.steps)).toEqual([
    ['authenticate', 'merchant'],
    ['start', 'started'],
    ['upstream', 'connection'],
    ['mark_in_doubt', 'ended'],
  ]);
  expect(lost.server.status).toBe(2);
  expect(lost.server.attributes['error.type']).toBe('outcome_unknown');
  expect((lost.steps[2] as CollectedSpan).status).toBe(2);
  const retried = await collector.requestSpans(idOf(await withdraw(stack.url, { key, fault })));
  expect(resultsOf(retried.steps).at(-1)).toEqual(['start', 'in_doubt']);
  // A line about the execution names the trace too.
  const line = stack.log.find(({ msg }) => msg === 'the outcome of an execution is unknown');
  expect(line?.traceId).toBe(lost.server.traceId);
});

test('a status of the backend is an error of its step from 400 on, and of the request from 500 on', async () => {
  const { stack, collector } = await openTraced();
  for (const [fault, ofStep, ofRequest] of [
    ['status=404', 2, 0],
    ['status=503', 2, 2],
  ] as const) {
    const answer = await withdraw(stack.url, { key: randomUUID(), fault });
    const { server, steps } = await collector.requestSpans(idOf(answer));
    expect([steps[2]?.status, server.status]).toEqual([ofStep, ofRequest]);
  }
});

test('a merchant who leaves: the spans end when the execution does', async () => {
  const { stack, collector } = await openTraced();
  const requestId = 'left-early-1';
  const wire = await Wire.open(stack.port);
  const fields = [
    ALPHA,
    `X-Request-Id: ${requestId}`,
    'Idempotency-Key: left',
    'X-Sandbox-Fault: delay=60000',
  ];
  wire.write(request('POST /v1/index.php', fields, JSON.stringify(payoutBody())));
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

test('a duplicate that waits for another gateway has one step for that, however often it asks', async () => {
  const { stack, collector } = await openTraced();
  const other = await gatewayForTest(stack.config);
  const first = withdraw(other.url, { key: 'one', fault: 'delay=60000' });
  await until(() => stack.sandbox.requests.ofKey('one') === 1);
  const duplicate = withdraw(stack.url, { key: 'one' });
  const peeks = () => metric(stack.adminUrl, 'oncegate_store_duration_seconds_count', { command: 'peek' });
  await until(async () => (await peeks()) > 2);
  stack.sandbox.endDelays('one');
  await first;
  const { steps } = await collector.requestSpans(idOf(await duplicate));
  expect(resultsOf(steps).slice(1)).toEqual([
    ['start', 'in_flight'],
    ['wait', 'completed'],
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
