import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

interface Link {
  client: Socket;
  server: Socket;
  /** A reply was dropped: the client would take the next reply for the answer to the wrong command. */
  maimed: boolean;
  /** No reply passes, and the client is not told. */
  silent: boolean;
  /** A replica's link to its master. */
  replication: boolean;
  /** The last of the delayed replies, so that none overtakes another. */
  lastReply: Promise<void>;
  /** The requests that are held back, while requests do not pass. */
  held: Buffer[] | undefined;
}

/** A TCP proxy in front of a local port, whose connections a test can break. */
export class TcpProxy {
  readonly #server: Server;
  readonly #links = new Set<Link>();
  /** Links whose client was reset while its requests were held back. */
  readonly #stranded = new Set<Link>();
  readonly host: string;
  #port = 0;
  #targetPort: number;
  #refusing = false;
  #swallowing: 'all' | 'replication' | 'nothing' = 'nothing';
  #delayMs = 0;
  #accepted = 0;

  /**
   * @param host where it listens. While it does not listen, a server of another test can get its port on the same address: give it
   *   an address of its own then.
   */
  constructor(targetPort: number, host = '127.0.0.1') {
    this.#targetPort = targetPort;
    this.host = host;
    this.#server = createServer((client) => {
      this.#accepted++;
      if (this.#refusing) client.resetAndDestroy();
      else this.#join(client, connect(this.#targetPort, '127.0.0.1'));
    });
  }

  get port(): number {
    return this.#port;
  }

  get url(): string {
    return `redis://${this.host}:${this.port}`;
  }

  /** How many connections clients have opened so far. */
  get accepted(): number {
    return this.#accepted;
  }

  /** Listens, on the same port as before if it has listened before. */
  async listen(): Promise<void> {
    if (this.#server.listening) return;
    this.#server.listen(this.#port, this.host);
    await once(this.#server, 'listening');
    this.#port = (this.#server.address() as AddressInfo).port;
  }

  /** The kernel refuses new connections, so that clients know that nothing was sent. Open connections stay open. */
  stopListening(): void {
    this.#server.close();
  }

  /** Resets all connections. */
  cut(): void {
    for (const link of this.#links) this.#part(link);
    for (const { server } of this.#stranded) server.resetAndDestroy();
    this.#stranded.clear();
  }

  /** New connections are accepted and reset: their clients may have sent something. Open connections stay open. */
  refuse(on: boolean): void {
    this.#refusing = on;
  }

  /** New connections go to another local port. */
  aimAt(targetPort: number): void {
    this.#targetPort = targetPort;
  }

  /** Passes requests and drops replies. When it is turned off, connections that lost a reply are reset. */
  swallowReplies(on: boolean): void {
    this.#swallow(on ? 'all' : 'nothing');
  }

  /** Stops replication: replicas get nothing from their master, other clients are not affected. */
  swallowReplication(on: boolean): void {
    this.#swallow(on ? 'replication' : 'nothing');
  }

  /** Drops every reply on the connections that are open now, and resets none. Connections that are opened later are not affected. */
  silence(): void {
    for (const link of this.#links) link.silent = true;
  }

  #swallow(what: 'all' | 'replication' | 'nothing'): void {
    this.#swallowing = what;
    if (what !== 'nothing') return;
    for (const link of this.#links) if (link.maimed) this.#part(link);
  }

  /**
   * Holds back what clients send from now on, on the connections that are open now. Replication and connections that are
   * opened later are not affected.
   */
  holdRequests(): void {
    for (const link of this.#links) if (!link.replication) link.held ??= [];
  }

  /** Resets the held connections towards their clients only: what they sent is still on its way to the server. */
  strandHeld(): void {
    for (const link of this.#links) {
      if (!link.held) continue;
      this.#links.delete(link);
      this.#stranded.add(link);
      link.client.resetAndDestroy();
    }
  }

  /** Delivers what was held back. The client of a stranded connection gets no answer. */
  deliverHeld(): void {
    for (const link of [...this.#links, ...this.#stranded]) {
      const held = Buffer.concat(link.held ?? []);
      link.held = undefined;
      if (held.length > 0 && link.server.writable) link.server.write(held);
    }
    for (const link of this.#stranded) link.server.end();
    this.#stranded.clear();
  }

  /** Delays every reply. */
  delayReplies(ms: number): void {
    this.#delayMs = ms;
  }

  async close(): Promise<void> {
    this.cut();
    if (this.#server.listening) await new Promise((resolve) => this.#server.close(resolve));
  }

  #join(client: Socket, server: Socket): void {
    const link: Link = {
      client,
      server,
      maimed: false,
      silent: false,
      replication: false,
      lastReply: Promise.resolve(),
      held: undefined,
    };
    this.#links.add(link);
    client.setNoDelay(true);
    server.setNoDelay(true);
    client.on('data', (bytes) => {
      link.replication ||= bytes.includes('REPLCONF');
      if (link.held) link.held.push(bytes);
      else server.write(bytes);
    });
    server.on('data', (bytes) => {
      if (link.silent) return;
      if (this.#swallows(link)) link.maimed = true;
      else link.lastReply = this.#reply(link, bytes, link.lastReply);
    });
    for (const socket of [client, server]) {
      socket.on('error', () => {});
      socket.on('close', () => this.#part(link));
    }
  }

  #swallows(link: Link): boolean {
    return this.#swallowing === 'all' || (this.#swallowing === 'replication' && link.replication);
  }

  async #reply(link: Link, bytes: Buffer, before: Promise<void>): Promise<void> {
    if (this.#delayMs > 0) await sleep(this.#delayMs, undefined, { ref: false });
    await before;
    if (!link.client.destroyed) link.client.write(bytes);
  }

  #part(link: Link): void {
    if (!this.#links.delete(link)) return;
    link.client.resetAndDestroy();
    link.server.resetAndDestroy();
  }
}
