import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

export interface FloodOptions {
  connections: number;
  /** Requests in flight on each connection. */
  ahead?: number;
  /** The least milliseconds between two requests of a connection; 0 by default. */
  everyMs?: number;
  /** The bytes of the next request. */
  next(): Buffer;
}

const STATUS = /HTTP\/1\.1 (\d{3}) /g;
/** A status line may come in two pieces. */
const LINE_BYTES = 'HTTP/1.1 200 '.length;

/**
 * Connections that send one request after the other at the lowest cost: answers are counted and not parsed. A connection
 * that the gateway closes is opened again.
 */
export class Flood {
  /** How often each status was answered. */
  readonly statuses: Record<number, number> = {};
  /** Milliseconds from a request to its answer; measured only without pipelining. */
  latenciesMs: number[] = [];
  answered = 0;
  #stopping = false;
  readonly #clients: Promise<void>[];

  constructor(port: number, { connections, ahead = 1, everyMs = 0, next }: FloodOptions) {
    this.#clients = Array.from({ length: connections }, async () => {
      while (!this.#stopping) await this.#client(connect(port, '127.0.0.1'), ahead, everyMs, next);
    });
  }

  /** Stops sending; resolves when the requests in flight are answered. */
  async stop(): Promise<this> {
    this.#stopping = true;
    await Promise.all(this.#clients);
    return this;
  }

  async #client(socket: Socket, ahead: number, everyMs: number, next: () => Buffer): Promise<void> {
    socket.setNoDelay(true).on('error', () => {});
    let [rest, sentMs, underWay] = ['', 0, 0];
    const send = (count: number) => {
      sentMs = performance.now();
      underWay += count;
      socket.write(Buffer.concat(Array.from({ length: count }, next)));
    };
    socket.once('connect', () => send(ahead));
    socket.on('data', (chunk) => {
      rest += chunk.toString('latin1');
      const answers = [...rest.matchAll(STATUS)];
      rest = rest.slice(1 - LINE_BYTES);
      if (answers.length === 0) return;
      for (const [, status] of answers) this.#count(Number(status));
      if (ahead === 1) this.latenciesMs.push(performance.now() - sentMs);
      underWay -= answers.length;
      const againMs = sentMs + everyMs - performance.now();
      if (!this.#stopping && againMs > 0)
        setTimeout(() => (this.#stopping ? socket.destroy() : send(answers.length)), againMs);
      else if (!this.#stopping) send(answers.length);
      else if (underWay === 0) socket.destroy();
    });
    await once(socket, 'close');
  }

  #count(status: number): void {
    this.answered++;
    this.statuses[status] = (this.statuses[status] ?? 0) + 1;
  }
}

export function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}
