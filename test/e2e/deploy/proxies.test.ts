import { once } from 'node:events';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { WebSocket } from 'ws';
import { Authority } from '../../support/certificates.ts';
import { send, withdraw } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { read } from '../../support/repository.ts';
import { stackForFile } from '../../support/stack.ts';
import { type Begun, begin } from '../../support/tour.ts';
import { until } from '../../support/until.ts';
import { codeOf } from '../../support/wire.ts';

const authority = new Authority();
const ca = readFileSync(authority.ca);
const { cert, key } = authority.issue();

const stack = await stackForFile({ listen: { host: '127.0.0.1', port: 0, trustedProxies: ['loopback'] } });

/** Replaces what belongs to another machine. Each of the texts must be there. */
function adapted(text: string, replacements: Record<string, string>): string {
  return Object.entries(replacements).reduce((so, [from, to]) => {
    expect(so).toContain(from);
    return so.replaceAll(from, to);
  }, text);
}

async function startNginx(): Promise<string> {
  const [folder, port] = [temporaryFolder(), await freePort()];
  const site = adapted(read('deploy/nginx/oncegate.conf'), {
    '127.0.0.1:8080': `127.0.0.1:${stack.port}`,
    'listen 443 ssl;': `listen 127.0.0.1:${port} ssl;`,
    '/etc/ssl/certs/payments.crt': cert,
    '/etc/ssl/private/payments.key': key,
  });
  mkdirSync(join(folder, 'temporary'));
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${folder}/temporary/${name};`,
  );
  const file = join(folder, 'nginx.conf');
  const main = [`pid ${folder}/pid;`, 'daemon off;', 'master_process off;', 'error_log stderr;', 'events {}'];
  writeFileSync(file, [...main, 'http {', 'access_log off;', ...temporary, site, '}'].join('\n'));
  await listening(['nginx', '-c', file, '-p', folder], port);
  return `https://127.0.0.1:${port}`;
}

async function startHaproxy(): Promise<string> {
  const [folder, port] = [temporaryFolder(), await freePort()];
  const pem = join(folder, 'payments.pem');
  writeFileSync(pem, readFileSync(cert, 'utf8') + readFileSync(key, 'utf8'), { mode: 0o600 });
  const text = adapted(read('deploy/haproxy/haproxy.cfg'), {
    'bind :443 ': `bind 127.0.0.1:${port} `,
    '/etc/haproxy/payments.pem': pem,
    '127.0.0.1:8080 check port 8081': `127.0.0.1:${stack.port} check port ${new URL(stack.adminUrl).port}`,
  });
  const file = join(folder, 'haproxy.cfg');
  writeFileSync(file, text);
  await listening(['haproxy', '-db', '-f', file], port);
  return `https://127.0.0.1:${port}`;
}

const proxies: Begun[] = [];
afterAll(() => Promise.all(proxies.map((proxy) => proxy.end('SIGKILL'))));

async function listening(program: string[], port: number): Promise<void> {
  const proxy = begin([], { program });
  proxies.push(proxy);
  const answers = () =>
    send(`https://127.0.0.1:${port}`, { ca }).then(
      // Until its first health check, HAProxy answers 503 itself.
      ({ headers }) => 'x-request-id' in headers,
      () => false,
    );
  await until(answers).catch(() => expect.fail(proxy.output()));
}

describe.each([
  ['nginx', startNginx],
  ['HAProxy', startHaproxy],
])('%s in front of the gateway', (_name, start) => {
  let url: string;
  beforeAll(async () => {
    url = await start();
  });

  it('passes payouts and replays on', async () => {
    const payout = { key: `${_name}-paid`, ca };
    expect((await withdraw(url, payout)).status).toBe(201);
    const again = await withdraw(url, payout);
    expect([again.status, again.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(stack.sandbox.ledger.payouts({ key: payout.key })).toBe(1);
  });

  it('never sends a payout without a key a second time', async () => {
    const before = stack.sandbox.ledger.payouts();
    expect((await withdraw(url, { ca, fault: 'execute-then-reset' })).status).toBe(502);
    expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
  });

  it('passes an ambiguous target on as it is, and the gateway refuses it', async () => {
    const answer = await send(url, {
      ca,
      path: '/v1//index.php',
      headers: { Authorization: 'Bearer sk_sandbox_alpha' },
    });
    expect([answer.status, codeOf(answer)]).toEqual([400, 'invalid_target']);
  });

  it('passes a WebSocket on', async () => {
    const headers = { authorization: 'Bearer sk_sandbox_alpha' };
    const socket = new WebSocket(`${url.replace('https', 'wss')}/v3/ws`, { headers, ca });
    onTestFinished(() => socket.terminate());
    await once(socket, 'open');
    socket.send('hello');
    expect(String((await once(socket, 'message'))[0])).toBe('hello');
  });

  it('passes no field on that a merchant forged', async () => {
    const names = [
      'Host',
      'Port',
      'Prefix',
      'Server',
      'Ssl',
      'Scheme',
      'User',
      'Uri',
      'Method',
      'By',
      'Proto',
      // By which Envoy, Traefik and oauth2-proxy tell a backend who the client is.
      'Client-Cert',
      'Tls-Client-Cert',
      'Tls-Client-Cert-Info',
      'Email',
      'Groups',
      'Preferred-Username',
      'Access-Token',
      'Path',
    ];
    const forged = Object.fromEntries(names.map((name) => [`X-Forwarded-${name}`, 'forged.test']));
    const authorised = { Authorization: 'Bearer sk_sandbox_alpha' };
    const headers = { ...forged, 'X-Real-IP': '203.0.113.9', Forwarded: 'for=203.0.113.9', ...authorised };
    const answer = await send(url, { ca, path: '/v3/echo', headers });
    const { rawHeaders } = answer.json<{ rawHeaders: [string, string][] }>();
    expect(rawHeaders.filter(([, value]) => /forged|203\.0/.test(value))).toEqual([]);
    const got = Object.fromEntries(rawHeaders.map(([name, value]) => [name.toLowerCase(), value]));
    const { port } = new URL(url);
    expect(got).toMatchObject({
      ...{ 'x-real-ip': '127.0.0.1', 'x-forwarded-proto': 'https', 'x-forwarded-port': port },
      'x-forwarded-host': expect.stringMatching(/^127\.0\.0\.1/),
    });
  });

  it('names the client, and nobody else', async () => {
    const id = `from-${_name}-0001`;
    await withdraw(url, { ca, headers: { 'X-Request-Id': id, 'X-Forwarded-For': '203.0.113.9' } });
    const line = await until(() => stack.log.find(({ requestId }) => requestId === id));
    // The test itself is on a trusted address, so nginx' header is believed as a whole.
    expect(line.client).toBe(_name === 'nginx' ? '203.0.113.9' : '127.0.0.1');
  });
});
