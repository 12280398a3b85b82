/**
 * Sends requests to a port at a fixed rate and measures the latency: `node paced.ts PORT WORK RATE SECONDS KEYS SECRET`.
 * Prints `{ p50Ms, p99Ms, answered, refused, wrong, late }`. The latencies are those of served requests. `refused` requests
 * were answered with 503. `late` requests could not be sent in time, because every connection still waited for an answer.
 * It runs as a separate process, so that nothing else delays its clock.
 */
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const CONNECTIONS = 32;
const BODY = '{"action":"withdraw","amount":1500.25,"bank_code":"058","account_number":"0123456789"}    ';
const [port = '', work = '', rate = '', seconds = '', keys = '', secret = ''] = process.argv.slice(2);

const latenciesMs: number[] = [];
let refused = 0;
let wrong = 0;
let count = 0;

function requestText(): string {
  const common = `Host: 127.0.0.1\r\nAuthorization: Bearer ${secret}\r\n`;
  if (work === 'balance') return `GET /v2/get_balance HTTP/1.1\r\n${common}\r\n`;
  const key = work === 'replay' ? keys : `${keys}-${++count}`;
  const head = `POST /v1/index.php HTTP/1.1\r\n${common}Content-Type: application/json\r\nContent-Length: ${BODY.length}\r\n`;
  return `${head}x-service-idempotency: ${key}\r\n\r\n${BODY}`;
}

/** One connection, one request at a time. */
class Connection {
  readonly #socket: Socket;
  #text = '';
  #sentMs = 0;
  #free: (connection: Connection) => void;

  constructor(free: (connection: Connection) => void) {
    this.#free = free;
    this.#socket = connect({ port: Number(port), host: '127.0.0.1', noDelay: true });
    this.#socket.setEncoding('latin1').on('data', (text: string) => this.#take(text));
  }

  send(): void {
    this.#sentMs = performance.now();
    this.#socket.write(requestText());
  }

  end(): void {
    this.#socket.destroy();
  }

  #take(text: string): void {
    this.#text += text;
    const headEnd = this.#text.indexOf('\r\n\r\n');
    if (headEnd < 0) return;
    const length = Number(/\r\ncontent-length: (\d+)/i.exec(this.#text)?.[1] ?? Number.NaN);
    if (Number.isNaN(length)) throw new Error(`an answer without a length:\n${this.#text}`);
    if (this.#text.length < headEnd + 4 + length) return;
    const status = this.#text.slice('HTTP/1.1 '.length, 'HTTP/1.1 '.length + 3);
    if (status.startsWith('2')) latenciesMs.push(performance.now() - this.#sentMs);
    else if (status === '503') refused++;
    else wrong++;
    this.#text = '';
    this.#free(this);
  }
}

const free: Connection[] = [];
const all = Array.from({ length: CONNECTIONS }, () => new Connection((one) => free.push(one)));
free.push(...all);
await sleep(200);
const startedMs = performance.now();
const total = Number(rate) * Number(seconds);
let sent = 0;
let late = 0;
while (sent < total) {
  const due = Math.min(total, Math.floor(((performance.now() - startedMs) * Number(rate)) / 1000));
  for (; sent < due; sent++) {
    const connection = free.shift();
    if (connection) connection.send();
    else late++;
  }
  await sleep(1);
}
await sleep(500);
for (const one of all) one.end();
latenciesMs.sort((a, b) => a - b);
const at = (share: number) =>
  Math.round((latenciesMs[Math.floor(share * (latenciesMs.length - 1))] ?? Number.NaN) * 1000) / 1000;
process.stdout.write(
  `${JSON.stringify({ p50Ms: at(0.5), p99Ms: at(0.99), answered: latenciesMs.length + refused + wrong, refused, wrong, late })}\n`,
);
