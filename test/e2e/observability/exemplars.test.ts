import { describe, expect, it, onTestFinished } from 'vitest';
import { send, withdraw } from '../../support/client.ts';
import { startPrometheus } from '../../support/prometheus.ts';
import { openStack } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { idle } from './support/traffic.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
/** What Prometheus sends: versions 2 and 3, and 3 where UTF-8 names are switched off. */
const ACCEPT = [
  'application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1',
  'application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2',
  'application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1',
];

describe('the metrics of a gateway', () => {
  it('are OpenMetrics for those who prefer it, and text for all others', async () => {
    const stack = await openStack();
    onTestFinished(() => stack.close());
    stack.gateway.metrics.observeRequest({ operation: 'withdraw' }, 0.02, TRACE);
    const read = async (headers: Record<string, string>) =>
      await send(stack.adminUrl, { path: '/metrics', headers });
    for (const Accept of ACCEPT) {
      const { headers, body } = await read({ Accept });
      expect(headers['content-type'], Accept).toBe(
        'application/openmetrics-text; version=1.0.0; charset=utf-8',
      );
      const text = body.toString();
      expect(text.endsWith('\n# EOF\n')).toBe(true);
      expect(text).toContain('\n# TYPE oncegate_requests counter\n');
      expect(text).toMatch(/\noncegate_requests_total\{operation="withdraw",outcome="executed"\} 0\n/);
      expect(text).not.toContain('_total_total');
      const bucket = `oncegate_request_duration_seconds_bucket{le="0.025",operation="withdraw"} 1 # {trace_id="${TRACE}"} 0.02 `;
      expect(text).toContain(bucket);
    }
    for (const headers of [
      {},
      { Accept: '*/*' },
      { Accept: 'text/plain' },
      { Accept: 'text/plain;version=0.0.4;q=0.5,*/*;q=0.1' },
      { Accept: 'text/html' },
    ]) {
      const answer = await read(headers as Record<string, string>);
      expect(answer.headers['content-type']).toBe('text/plain; version=0.0.4; charset=utf-8');
      const text = answer.body.toString();
      expect(text).toContain('# TYPE oncegate_requests_total counter\n');
      expect(text).not.toContain(TRACE);
      expect(text).not.toContain('# EOF');
    }
  });

  it('have the trace id that a request brought', async () => {
    const stack = await openStack();
    onTestFinished(() => stack.close());
    const headers = { traceparent: `00-${TRACE}-00f067aa0ba902b7-01` };
    expect((await withdraw(stack.url, { key: 'traced', headers })).status).toBe(201);
    expect((await withdraw(stack.url, { key: 'untraced' })).status).toBe(201);
    await idle(stack.adminUrl);
    const accept = { Accept: 'application/openmetrics-text' };
    const { body } = await send(stack.adminUrl, { path: '/metrics', headers: accept });
    const traced = body
      .toString()
      .split('\n')
      .filter((line) => line.includes(TRACE));
    expect(traced.map((line) => line.replace(/\{.*/, '')).sort()).toEqual([
      'oncegate_request_duration_seconds_bucket',
      'oncegate_upstream_duration_seconds_bucket',
    ]);
  });

  it('have no trace id of a request whose flag says that it is not recorded', async () => {
    const stack = await openStack();
    onTestFinished(() => stack.close());
    const headers = { traceparent: `00-${TRACE}-00f067aa0ba902b7-00` };
    expect((await withdraw(stack.url, { key: 'traced', headers })).status).toBe(201);
    await idle(stack.adminUrl);
    const lines = (await stack.gateway.metrics.text('openmetrics')).split('\n');
    expect(lines.filter((line) => line.includes(TRACE))).toEqual([]);
  });

  it('are accepted by Prometheus, which keeps the trace ids', async () => {
    const stack = await openStack();
    onTestFinished(() => stack.close());
    const { metrics } = stack.gateway;
    expect((await withdraw(stack.url, { key: 'one' })).status).toBe(201);
    metrics.observeRequest({ operation: 'withdraw' }, 0.02, TRACE);
    metrics.observeUpstream({ operation: 'withdraw', result: 'complete' }, 99, TRACE);
    const targets = [new URL(stack.adminUrl).host];
    const prometheus = await startPrometheus({ targets, exemplars: true, everyMs: 1000 });
    onTestFinished(() => prometheus.stop());
    await until(async () => (await prometheus.query('up == 1')).length === 1);
    const executed = 'oncegate_requests_total{operation="withdraw",outcome="executed"}';
    expect((await prometheus.query(executed))[0]?.value).toBe(1);
    const exemplarsOf = async (name: string) => {
      const query = new URLSearchParams({
        query: name,
        start: `${Date.now() / 1000 - 60}`,
        end: `${Date.now() / 1000 + 60}`,
      });
      const answer = await fetch(`${prometheus.url}/api/v1/query_exemplars?${query}`);
      const { data } = (await answer.json()) as {
        data: { seriesLabels: Record<string, string>; exemplars: { labels: object; value: string }[] }[];
      };
      return data.map(({ seriesLabels: { le }, exemplars: [first] }) => ({
        le,
        ...first?.labels,
        value: first?.value,
      }));
    };
    const ofRequests = await until(async () => {
      const found = await exemplarsOf('oncegate_request_duration_seconds_bucket');
      return found.length > 0 ? found : undefined;
    });
    expect(ofRequests).toEqual([{ le: '0.025', trace_id: TRACE, value: '0.02' }]);
    const ofUpstream = await exemplarsOf('oncegate_upstream_duration_seconds_bucket');
    expect(ofUpstream).toEqual([{ le: '+Inf', trace_id: TRACE, value: '99' }]);
  });
});
