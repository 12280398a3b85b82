/** Each claim of docs/backend.md about what the backend gets, with a backend that keeps every byte. */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { readBalance } from '../../../src/cli/read-balance.ts';
import { parseConfig } from '../../../src/config/load.ts';
import { backendForFile } from '../../support/backend.ts';
import { newFolder, run } from '../../support/command.ts';
import { configFile, type MoreConfig, parsedConfig, testConfig } from '../../support/config.ts';
import { blocksOf } from '../../support/documents.ts';
import { read } from '../../support/repository.ts';
import { readiness, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { ALPHA, ask, head } from '../../support/wire.ts';

const PAGE = 'docs/backend.md';

/** What came on each connection. */
const received: { text: string; isClosed: boolean }[] = [];
const BODY = '{"data":{"merchant_code":"M-ALPHA"}}';
const url = await backendForFile(
  createServer((socket) => {
    const connection = { text: '', isClosed: false };
    received.push(connection);
    socket.on('close', () => {
      connection.isClosed = true;
    });
    socket.on('data', (bytes) => {
      connection.text += bytes;
      socket.end(
        `HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`,
      );
    });
  }),
);
afterEach(() => {
  received.length = 0;
});

const open = (auth: MoreConfig['auth'] = {}) => {
  const folder = newFolder();
  const { keys } = testConfig(folder, url).auth ?? {};
  return stackForTest({ upstream: { url }, auth: { ...(keys && { keys }), ...auth } });
};

const [sent = '', got = ''] = blocksOf(PAGE, 'A payout').map(({ text }) => text.trimEnd());
const payout = sent.replaceAll('\n', '\r\n');

/** Without what differs from run to run. */
const steady = (text = '') =>
  text
    .replaceAll('\r', '')
    .replace(/^host: .*$/m, 'host: BACKEND')
    .replace(/^X-Request-Id: .*$/m, 'X-Request-Id: ID')
    .replace(/^oncegate-hops: .*$/m, 'oncegate-hops: HOPS');

describe('docs/backend.md', () => {
  it('shows a payout as the backend gets it, under keep, strip and replace', async () => {
    const table = read(PAGE).split('## Authorization')[1]?.split('\n\n')[1] ?? '';
    const bearer = 'Authorization: Bearer sk_sandbox_alpha\n';
    const lines = {
      keep: bearer,
      strip: '',
      replace: 'Authorization: Bearer of-the-gateway\n',
    };
    expect(table.match(/^\| `\w+`/gm)).toEqual(Object.keys(lines).map((forward) => `| \`${forward}\``));
    expect(got).toContain(bearer);
    const [{ text: section = '' } = {}] = blocksOf(PAGE).filter(({ language }) => language === 'yaml');
    const env = { ONCEGATE_PEPPER: 'a-pepper-of-some-length', BACKEND_KEY: 'of-the-gateway' };
    const { auth } = parseConfig(`upstream: { url: "${url}" }\n${section}`, env);
    expect(auth).toMatchObject({ forward: 'replace', replaceWith: 'Bearer of-the-gateway' });
    for (const [forward, line] of Object.entries(lines)) {
      const replaceWith = forward === 'replace' ? { replaceWith: 'Bearer of-the-gateway' } : {};
      const { port } = await open({ forward: forward as 'keep', ...replaceWith });
      expect((await ask(port, payout)).status).toBe(200);
      expect(steady(received.at(-1)?.text)).toBe(steady(got).replace(bearer, line));
    }
  });

  it('says what the gateway sends by itself', async () => {
    const stack = await open({ keys: { source: 'upstream' } });
    await readiness(stack);
    await until(() => received[0]?.isClosed);
    expect(received.map(({ text }) => text)).toEqual(['']);
    expect((await ask(stack.port, payout)).status).toBe(200);
    const [, probe = '', request = ''] = received.map(({ text }) => text);
    expect(probe).toMatch(/^GET \/v2\/get_balance HTTP\/1.1\r\n/);
    expect(probe).toContain('\r\nAuthorization: Bearer sk_sandbox_alpha\r\n');
    expect(probe).not.toMatch(/x-merchant-code/i);
    expect(steady(request)).toBe(steady(got));
    expect(received).toHaveLength(3);
    // A request that is streamed keeps its Accept-Encoding, and its names are in lower case.
    const fields = ['Accept-Encoding: gzip', 'X_Merchant_Code: M-2', 'X-Odd.Name: 1', 'Forwarded: for=a'];
    expect((await ask(stack.port, head('GET /v3/echo', ALPHA, ...fields))).status).toBe(200);
    const streamed = received.at(-1)?.text;
    expect(streamed).toContain('\r\naccept-encoding: gzip\r\n');
    expect(streamed).toContain('\r\nx-merchant-code: M-ALPHA\r\n');
    expect(streamed).not.toMatch(/oncegate-hops|M-2|odd|^forwarded/im);
  });

  it('imports a secret key that a merchant has, with which the balance is read', async () => {
    const [command = ''] = blocksOf(PAGE, 'Secret keys that merchants already have').map(({ text }) => text);
    const folder = newFolder();
    const auth = {
      pepper: 'a-pepper-of-some-length',
      keys: { source: 'file', path: join(folder, 'k.yaml') },
    } as const;
    const config = testConfig(folder, url, { auth });
    const file = configFile(config, folder);
    const [, args = ''] = /^printf %s "\$SECRET_KEY" \| oncegate (.+)$/m.exec(command) ?? [];
    const input = 'sk_of_the_merchant';
    const ended = await run(args.replace('gateway.yaml', file).split(' '), { input });
    expect(ended).toMatchObject({ code: 0, stdout: '' });
    expect(readFileSync(auth.keys.path, 'utf8')).not.toContain(input);
    const read = await readBalance(parsedConfig(config), input);
    expect(read).toEqual({ ok: true, detail: 'GET /v2/get_balance for the merchant M-1001: status 200' });
    expect(received.at(-1)?.text).toMatch(
      /\r\nAuthorization: Bearer sk_of_the_merchant\r\n.*\r\nX-Merchant-Code: M-1001\r\n/s,
    );
  });
});
