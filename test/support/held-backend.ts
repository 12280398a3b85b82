import type { ServerResponse } from 'node:http';
import { httpBackend } from './backend.ts';

/** A backend that holds every payout until the test releases it. Closed after the test. */
export interface HeldBackend {
  url: string;
  /** How many connections were opened to it. */
  connections: number;
  /** Idempotency keys of the requests that it got, in their order; '' for a request without one. */
  requests: string[];
  /** Answers the waiting requests, and from now on every request at once. */
  answerAll(): void;
}

export async function openHeldBackend(): Promise<HeldBackend> {
  const held: ServerResponse[] = [];
  let isHolding = true;
  const answer = (res: ServerResponse, at: number) => {
    const body = JSON.stringify({ success: true, data: { id: `payment ${at}` } });
    res.writeHead(201, { 'Content-Type': 'application/json' }).end(body);
  };
  const backend: HeldBackend = {
    url: '',
    connections: 0,
    requests: [],
    answerAll() {
      isHolding = false;
      for (const [at, res] of held.splice(0).entries()) answer(res, at);
    },
  };
  backend.url = await httpBackend(
    (req, res) => {
      backend.requests.push(String(req.headers['x-service-idempotency'] ?? ''));
      req.resume().once('end', () => {
        if (isHolding) held.push(res);
        else answer(res, backend.requests.length);
      });
    },
    (server) => server.on('connection', () => backend.connections++),
  );
  return backend;
}
