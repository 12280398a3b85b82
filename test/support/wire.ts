import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { onTestFinished } from 'vitest';
import { payoutBody } from './payout.ts';

/** One answer from a raw connection; each 1xx counts as a separate answer. */
export interface WireAnswer {
  status: number;
  /** Names in lower case; values of repeated lines in their order. */
  headers: Record<string, string[]>;
  /** The header lines as received. */
  lines: string[];
  body: Buffer;
  json<T = Record<string, unknown>>(): T;
}

export const ALPHA = 'Authorization: Bearer sk_sandbox_alpha';
export const BRAVO = 'Authorization: Bearer sk_sandbox_bravo';

/** The fields of a WebSocket handshake. */
export const HANDSHAKE = [
  ...['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13'],
  'Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==',
];

/** A request's head: `head('GET /v3/echo', ALPHA)`. */
export function head(line: string, ...fields: string[]): string {
  return [`${line} HTTP/1.1`, 'Host: gateway.test', ...fields, '', ''].join('\r\n');
}

/** A whole request with a body of known length. */
export function request(line: string, fields: string[], body: string | Buffer = ''): Buffer {
  const bytes = Buffer.from(body);
  const first = head(line, ...fields, `Content-Length: ${bytes.length}`);
  return Buffer.concat([Buffer.from(first, 'latin1'), bytes]);
}

/** A payout under this key, with more fields. */
export const payoutOf = (key: string, ...fields: string[]): Buffer =>
  request(
    'POST /v1/index.php',
    [ALPHA, `x-service-idempotency: ${key}`, ...fields],
    JSON.stringify(payoutBody()),
  );

export const chunk = (text: string): string => `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`;
export const LAST_CHUNK = '0\r\n\r\n';

/** The code of a problem's body; empty if the body is another JSON. */
export const codeOf = (answer: { json<T>(): T }): string =>
  answer.json<{ error?: { code: string } }>().error?.code ?? '';

/** A raw connection to the gateway. */
export class Wire {
  readonly socket: Socket;
  /** Resolves when the other side has ended or reset the connection. */
  readonly ended: Promise<'end' | 'reset'>;
  #bytes = Buffer.alloc(0);
  #over = false;
  #wake: () => void = () => {};

  /** Opens a connection, until the end of the test. With `ca`, the authority of the server's certificate, it is encrypted. */
  static async open(port: number, ca?: Buffer): Promise<Wire> {
    const to = { port, host: '127.0.0.1' };
    const wire = new Wire(ca ? connectTls({ ...to, ca }) : connect(to));
    onTestFinished(() => void wire.socket.destroy());
    await once(wire.socket, ca ? 'secureConnect' : 'connect');
    return wire;
  }

  constructor(socket: Socket) {
    this.socket = socket.setNoDelay(true);
    this.ended = new Promise((resolve) => {
      const end = (how: 'end' | 'reset') => {
        this.#over = true;
        this.#wake();
        resolve(how);
      };
      socket.once('end', () => end('end'));
      socket.once('error', () => end('reset'));
      socket.once('close', () => end('reset'));
    });
    socket.on('data', (bytes) => {
      this.#bytes = Buffer.concat([this.#bytes, bytes]);
      this.#wake();
    });
  }

  /** Everything that was received and not yet read as an answer. */
  get rest(): string {
    return this.#bytes.toString('latin1');
  }

  write(bytes: string | Buffer): this {
    this.socket.write(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes);
    return this;
  }

  /** Resolves once `text` has arrived. @throws if the connection closes first */
  async hears(text: string): Promise<void> {
    while (!this.rest.includes(text)) await this.#more(`"${text}"`);
  }

  /**
   * The next answer. `bodiless`: the request was a HEAD.
   * @throws if the connection closes within it
   */
  async answer({ bodiless = false } = {}): Promise<WireAnswer> {
    while (!this.rest.includes('\r\n\r\n')) await this.#more('the head of an answer');
    const end = this.rest.indexOf('\r\n\r\n');
    const [statusLine = '', ...lines] = this.#take(end + 4)
      .toString('latin1')
      .slice(0, -4)
      .split('\r\n');
    const status = Number(/^HTTP\/1\.[01] (\d{3}) /.exec(statusLine)?.[1]);
    if (Number.isNaN(status)) throw new Error(`no status line: ${statusLine}`);
    const headers = fieldsOf(lines);
    const none = bodiless || status < 200 || status === 204 || status === 304;
    const body = none ? Buffer.alloc(0) : await this.#body(headers);
    return { status, headers, lines, body, json: () => JSON.parse(body.toString()) };
  }

  async #body(headers: WireAnswer['headers']): Promise<Buffer> {
    const [length] = headers['content-length'] ?? [];
    if (headers['transfer-encoding']) return await this.#chunks();
    if (length !== undefined) return await this.#exactly(Number(length));
    while (!this.#over) await this.#more('the rest of the body').catch(() => {});
    return this.#take(this.#bytes.length);
  }

  async #chunks(): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for (;;) {
      while (!this.rest.includes('\r\n')) await this.#more('a chunk');
      const line = this.#take(this.rest.indexOf('\r\n') + 2).toString('latin1');
      if (!/^[0-9a-f]+\r\n$/i.test(line)) throw new Error(`no chunk size: ${line}`);
      const piece = await this.#exactly(Number.parseInt(line, 16) + 2);
      if (piece.length === 2) return Buffer.concat(chunks);
      chunks.push(piece.subarray(0, -2));
    }
  }

  async #exactly(bytes: number): Promise<Buffer> {
    while (this.#bytes.length < bytes) await this.#more(`${bytes} bytes`);
    return this.#take(bytes);
  }

  #take(bytes: number): Buffer {
    const taken = this.#bytes.subarray(0, bytes);
    this.#bytes = this.#bytes.subarray(bytes);
    return taken;
  }

  async #more(waitedFor: string): Promise<void> {
    if (this.#over) throw new Error(`the connection ended before ${waitedFor}, after: ${this.rest}`);
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
  }
}

/** The first answer to bytes on a new connection. */
export async function ask(port: number, bytes: string | Buffer): Promise<WireAnswer> {
  return await (await Wire.open(port)).write(bytes).answer();
}

function fieldsOf(lines: readonly string[]): Record<string, string[]> {
  const fields: Record<string, string[]> = Object.create(null);
  for (const line of lines) {
    const colon = line.indexOf(':');
    const name = line.slice(0, colon).toLowerCase();
    fields[name] = [...(fields[name] ?? []), line.slice(colon + 1).trim()];
  }
  return fields;
}
