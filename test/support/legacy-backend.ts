import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { backendForFile } from './backend.ts';

/** A request that the backend executed. */
export interface Execution {
  method: string;
  target: string;
  key: string | undefined;
  /** Length and framing of the body, and its SHA-256. */
  bytes: number;
  framing: string;
  sha256: string;
}

/** Ends a request's connection after its execution, without an answer. */
export const RESET = { 'X-Then': 'reset' };

/** A backend that executes every request each time it arrives, whatever its method, path and body. */
export interface LegacyBackend {
  url: string;
  executions: Execution[];
}

/** A legacy backend that is closed after the test file. */
export async function legacyBackendForFile(): Promise<LegacyBackend> {
  const executions: Execution[] = [];
  const server = createServer((req, res) => {
    void buffer(req).then((body) => {
      executions.push(executionOf(req, body));
      if (req.headers['x-then'] === 'reset') req.socket.resetAndDestroy();
      else res.writeHead(201).end(`execution ${executions.length}`);
    });
  });
  return { executions, url: await backendForFile(server) };
}

function executionOf({ method = '', url: target = '', headers }: IncomingMessage, body: Buffer): Execution {
  const key = headers['x-service-idempotency']?.toString();
  const framing = headers['transfer-encoding'] ?? headers['content-length'] ?? 'none';
  return { method, target, key, bytes: body.length, framing, sha256: sha256(body) };
}

export const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
