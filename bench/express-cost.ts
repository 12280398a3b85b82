/**
 * What Express costs: `node bench/express-cost.ts`.
 *
 * One process has two servers that answer from memory. One passes each request through the gateway's Express application with
 * middleware that does nothing, the other calls the same functions one after the other. Slices of load alternate between them.
 */
import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { createApp, type RequestPath } from '../src/gateway/app.ts';
import type { Middleware } from '../src/kernel/context.ts';

const SLICES = 20;
const WARM_UP_SLICES = 4;

const pass: Middleware = (_req, _res, next) => next();
const answer = (_req: IncomingMessage, res: ServerResponse) => {
  res.writeHead(200, ['Content-Length', '2']);
  res.end('ok');
};

const path: RequestPath = {
  ...{ admit: pass, checkHead: pass, authenticate: pass, identify: pass, authorise: pass, protect: pass },
  forward: answer,
  answerRefusal: (_refusal, req, res) => answer(req, res),
};

async function serve(): Promise<void> {
  const app = createApp(path);
  const express = createServer({ IncomingMessage: app.Request, ServerResponse: app.Response }, app.handle);
  const steps = [
    path.admit,
    path.checkHead,
    path.authenticate,
    path.identify,
    path.authorise,
    path.protect,
    path.forward,
  ];
  const bare = createServer((req, res) => {
    const walk = (at: number): void => void steps[at]?.(req, res, () => walk(at + 1));
    walk(0);
  });
  const ports: number[] = [];
  for (const server of [express, bare]) {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    ports.push((server.address() as AddressInfo).port);
  }
  process.on('message', () => {
    const { user, system } = process.cpuUsage();
    process.send?.(user + system);
  });
  process.send?.(ports);
}

async function measure(): Promise<void> {
  const child = fork(fileURLToPath(import.meta.url), ['serve']);
  try {
    const [ports] = (await once(child, 'message')) as [number[]];
    const cpuUs = async (): Promise<number> => {
      child.send('cpu');
      return ((await once(child, 'message')) as [number])[0];
    };
    const costs: number[][] = [[], []];
    for (let slice = 0; slice < WARM_UP_SLICES + SLICES; slice++) {
      for (const [which, port] of ports.entries()) {
        const before = await cpuUs();
        const output = execFileSync('wrk', ['-t1', '-c32', '-d1s', `http://127.0.0.1:${port}/v1/index.php`], {
          encoding: 'utf8',
        });
        const requests = Number(/(\d+) requests in/.exec(output)?.[1]);
        if (slice >= WARM_UP_SLICES) costs[which]?.push(((await cpuUs()) - before) / requests);
      }
    }
    const [express = [], bare = []] = costs;
    const differences = express.map((cost, i) => cost - (bare[i] ?? 0)).toSorted((a, b) => a - b);
    const at = (share: number) => (differences[Math.floor(share * (differences.length - 1))] ?? 0).toFixed(1);
    const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]?.toFixed(1);
    process.stdout.write(
      `Express costs ${at(0.5)} µs of CPU a request (quartiles ${at(0.25)} and ${at(0.75)}): ` +
        `${median(express)} µs with it, ${median(bare)} µs without it\n`,
    );
  } finally {
    child.kill();
  }
}

if (process.argv[2] === 'serve') await serve();
else await measure();
