import type { ChildProcess } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { freePort } from '../test/support/free-port.ts';
import { untilListening } from './listening.ts';
import { CORES, startPinned } from './processes.ts';

/** Bytes of the answers' bodies. */
const SIZES = [300, 4096, 65_536] as const;
export type Size = (typeof SIZES)[number];

export interface Backend {
  urls: Record<Size, string>;
  process: ChildProcess;
  /** How many requests it has had from systems under test. */
  requests(): Promise<number>;
}

const COMMON = (folder: string) => `
daemon off;
${process.getuid?.() === 0 ? 'user root;' : ''}
worker_processes 1;
pid ${folder}/nginx.pid;
error_log ${folder}/error.log crit;
events { worker_connections 4096; }
`;

const HTTP = (folder: string) => `
  ${['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((name) => `${name}_temp_path ${folder}/${name};`).join('\n  ')}
  default_type application/json;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  sendfile on;
  tcp_nopush on;
  client_max_body_size 2m;
`;

/** A static backend with one port for each size: it answers every request with the same file. */
export async function startBackend(root: string): Promise<Backend> {
  const folder = join(root, 'backend');
  const ports = new Map<Size, number>();
  for (const size of SIZES) {
    mkdirSync(join(folder, `${size}`), { recursive: true });
    writeFileSync(join(folder, `${size}`, 'answer.json'), answerOf(size));
    ports.set(size, await freePort());
  }
  const countPort = await freePort();
  const servers = [...ports].map(
    ([size, port]) => `
  server {
    listen 127.0.0.1:${port} backlog=4096;
    access_log off;
    root ${folder}/${size};
    # nginx gives no file to a POST, and gives what an error page is to all methods.
    error_page 405 =200 /answer.json;
    location / { rewrite ^ /answer.json break; }
  }`,
  );
  writeFileSync(
    join(folder, 'nginx.conf'),
    `${COMMON(folder)}http {${HTTP(folder)}${servers.join('\n')}
  server { listen 127.0.0.1:${countPort}; location / { stub_status; } }
}
`,
  );
  const child = startPinned(CORES.rest, 'nginx', ['-c', join(folder, 'nginx.conf'), '-p', folder], {
    logFile: join(folder, 'log'),
  });
  for (const port of [...ports.values(), countPort]) await untilListening(port);
  const urls = Object.fromEntries([...ports].map(([size, port]) => [size, `http://127.0.0.1:${port}`]));
  let questions = 0;
  const requests = async () => {
    const text = await (await fetch(`http://127.0.0.1:${countPort}`)).text();
    const [, count] = /(\d+) \nReading/.exec(text) ?? [];
    if (count === undefined) throw new Error(`nginx answers without a count of its requests:\n${text}`);
    // nginx counts the questions, too.
    return Number(count) - ++questions;
  };
  return { urls: urls as Backend['urls'], process: child, requests };
}

/** nginx as a proxy, with connections to the backend kept open, and an access log. */
export function nginxProxy(root: string, port: number, backendUrl: string): { conf: string; folder: string } {
  const folder = join(root, `nginx-${port}`);
  mkdirSync(folder, { recursive: true });
  const conf = join(folder, 'nginx.conf');
  writeFileSync(
    conf,
    `${COMMON(folder)}http {${HTTP(folder)}
  access_log ${folder}/access.log combined buffer=32k;
  upstream backend { server ${new URL(backendUrl).host}; keepalive 64; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:${port} backlog=4096;
    location / { proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
`,
  );
  return { conf, folder };
}

/** JSON of exactly this many bytes. */
function answerOf(size: number): string {
  const start = '{"success":true,"data":{"reference":"WD-000000000001","status":"accepted","note":"';
  return `${start}${'x'.repeat(size - start.length - 3)}"}}`;
}
