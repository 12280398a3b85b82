import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll } from 'vitest';

interface Link {
  client: Socket;
  server: Socket;
  /** A reply was dropped: what follows would be taken for the answer to another command. */
  maimed: boolean;
  /** A reply has passed since the last request did. */
  answered: boolean;
  /** The last of the replies under way: none overtakes another. */
  lastReply: Promise<void>;
}

const open = new Set<TcpProxy>();
afterAll(async () => {
  await Promise.all([...open].map((proxy) => proxy.close()));
});

/** A wire that tests can break, in front of a port of this machine; closed at the end of the test file. */
export async function startProxy(targetPort: number): Promise<TcpProxy> {
  const proxy = new TcpProxy(targetPort);
  open.add(proxy);
  await proxy.listen();
  return proxy;
}

export class TcpProxy {
  readonly #server: Server;
  readonly #links = new Set<Link>();
  #refusing = false;
  #swallowing = false;
  #delayMs = 0;
  #roundTrips = 0;

  constructor(targetPort: number) {
    this.#server = createServer((client) => {
      if (this.#refusing) client.resetAndDestroy();
      else this.#join(client, connect(targetPort, '127.0.0.1'));
    });
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /**
   * Times that a client sent on a connection after having got what it had asked for. Set a delay before counting: it
   * makes sure that all of what a client sends in one go is there before the first reply is.
   */
  get roundTrips(): number {
    return this.#roundTrips;
  }

  async listen(): Promise<void> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
  }

  /** Resets all connections. */
  cut(): void {
    for (const link of this.#links) this.#part(link);
  }

  /** New connections are reset; those that stand stay. */
  refuse(on: boolean): void {
    this.#refusing = on;
  }

  /** Requests pass, replies are dropped. Turned off, connections that lost a reply are reset. */
  swallowReplies(on: boolean): void {
    this.#swallowing = on;
    if (on) return;
    for (const link of this.#links) if (link.maimed) this.#part(link);
  }

  /** Replies arrive that much later. */
  delayReplies(ms: number): void {
    this.#delayMs = ms;
  }

  async close(): Promise<void> {
    open.delete(this);
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #join(client: Socket, server: Socket): void {
    const link = { client, server, maimed: false, answered: true, lastReply: Promise.resolve() };
    this.#links.add(link);
    client.setNoDelay(true);
    server.setNoDelay(true);
    client.on('data', (bytes) => {
      if (link.answered) this.#roundTrips++;
      link.answered = false;
      server.write(bytes);
    });
    server.on('data', (bytes) => {
      if (this.#swallowing) link.maimed = true;
      else link.lastReply = this.#reply(link, bytes, link.lastReply);
    });
    for (const socket of [client, server]) {
      socket.on('error', () => {});
      socket.on('close', () => this.#part(link));
    }
  }

  async #reply(link: Link, bytes: Buffer, before: Promise<void>): Promise<void> {
    if (this.#delayMs > 0) await sleep(this.#delayMs, undefined, { ref: false });
    await before;
    link.answered = true;
    if (!link.client.destroyed) link.client.write(bytes);
  }

  #part(link: Link): void {
    if (!this.#links.delete(link)) return;
    link.client.resetAndDestroy();
    link.server.resetAndDestroy();
  }
}
