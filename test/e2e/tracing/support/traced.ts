import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { httpBackend } from '../../../support/backend.ts';
import type { MoreConfig } from '../../../support/config.ts';
import { type Stack, stackForTest } from '../../../support/stack.ts';
import { acceptUpgrade } from '../../../support/web-sockets.ts';
import { type Collector, startCollector } from './collector.ts';

/** A gateway that records every request, and the collector that it sends the spans to. Closed after the test. */
export async function openTraced(more: MoreConfig = {}): Promise<{ stack: Stack; collector: Collector }> {
  const collector = await startCollector();
  const tracing = {
    ...{ endpoint: `${collector.url}/otlp/v1/traces`, ratio: 1, sendEveryMs: 20 },
    ...more.tracing,
  };
  return { stack: await stackForTest({ ...more, tracing }), collector };
}

/** A backend that keeps the head of each request. It answers 201, and accepts every upgrade. */
export async function openHeaderBackend(): Promise<{ url: string; seen: IncomingMessage[] }> {
  const seen: IncomingMessage[] = [];
  const url = await httpBackend(
    (req, res) => {
      seen.push(req);
      req.resume().once('end', () => res.writeHead(201, { 'Content-Type': 'application/json' }).end('{}'));
    },
    (server) =>
      server.on('upgrade', (req, socket) => {
        seen.push(req);
        acceptUpgrade(socket.resume());
      }),
  );
  return { url, seen };
}

export const idOf = ({ headers }: { headers: IncomingHttpHeaders }): string =>
  String(headers['x-request-id']);
