import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { stringify } from 'yaml';
import { send, type TestAnswer } from '../../support/client.ts';
import { FAST_START, newFolder } from '../../support/command.ts';
import { testConfig } from '../../support/config.ts';
import { killAfterTests } from '../../support/process-life.ts';
import { MAIN, track } from '../../support/spawn.ts';

interface Tour {
  /** The printed curl commands, in order. */
  commands: string[];
  sandboxUrl: string;
  adminUrl: string;
  output(): string;
  /** Resolves to the exit code, or to the signal that ended the process. */
  end(signal: NodeJS.Signals): Promise<number | string>;
}

async function start(data: string): Promise<Tour> {
  const args = ['start', '--port', '0', '--admin-port', '0', '--sandbox-port', '0', '--data', data];
  const child = track(spawn(process.execPath, [MAIN, ...args], { env: { ...process.env, ...FAST_START } }));
  killAfterTests(child.pid as number);
  const lines: string[] = [];
  let errors = '';
  child.stderr?.on('data', (chunk) => {
    errors += chunk;
  });
  const exited = once(child, 'exit');
  await new Promise<void>((resolve, reject) => {
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).on('line', (line) => {
      lines.push(line);
      if (lines.filter((printed) => printed.startsWith('curl ')).length === 3) resolve();
    });
    child.once('exit', (code) => reject(new Error(`start ended with ${code}: ${errors}`)));
  });
  const urlOf = (server: string) =>
    lines.join('\n').match(new RegExp(`^  ${server} +(http://[\\d.]+:\\d+)`, 'm'))?.[1] ?? '';
  return {
    commands: lines.filter((line) => line.startsWith('curl ')),
    sandboxUrl: urlOf('sandbox'),
    adminUrl: urlOf('admin'),
    output: () => `${lines.join('\n')}${errors}`,
    async end(signal) {
      child.kill(signal);
      const [code, name] = await exited;
      return code ?? name;
    },
  };
}

const hasCurl = await promisify(execFile)('curl', ['--version']).then(
  () => true,
  () => false,
);

/** Runs a printed curl command. Without curl, sends the request of the command. */
async function runCurl(command: string): Promise<Pick<TestAnswer, 'status' | 'headers' | 'body'>> {
  if (!hasCurl) return await send(...requestOf(command));
  const { stdout } = await promisify(execFile)('sh', ['-c', `${command} -sS`], { encoding: 'buffer' });
  const end = stdout.indexOf('\r\n\r\n');
  const [statusLine = '', ...fields] = stdout.subarray(0, end).toString('latin1').split('\r\n');
  const headers = fields
    .map((line) => line.split(/: (.*)/s))
    .map(([name = '', value = '']) => [name.toLowerCase(), value]);
  return {
    status: Number(statusLine.split(' ')[1]),
    headers: Object.fromEntries(headers),
    body: stdout.subarray(end + 4),
  };
}

function requestOf(command: string): Parameters<typeof send> {
  const words = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain ?? '');
  const after = (flag: string) => words.filter((_, at) => words[at - 1] === flag);
  const [body] = after('-d');
  const headers = Object.fromEntries(after('-H').map((field) => field.split(/: (.*)/s).slice(0, 2)));
  const url = new URL(words[2] ?? '');
  return [url.origin, { path: url.pathname, headers, ...(body ? { method: 'POST', body } : {}) }];
}

const payouts = async ({ sandboxUrl }: Tour) =>
  (await send(sandboxUrl, { path: '/_sandbox/ledger' })).json<{ payouts: number }>().payouts;

it('start prints three commands that work, and their results survive a kill', async () => {
  const data = newFolder();
  const first = await start(data);
  expect(first.commands).toHaveLength(3);
  expect(first.commands[2]).toBe(first.commands[1]);

  const [balance, paid, again] = [
    await runCurl(first.commands[0] ?? ''),
    await runCurl(first.commands[1] ?? ''),
    await runCurl(first.commands[2] ?? ''),
  ];
  expect(balance.status).toBe(200);
  const { data: wallet } = JSON.parse(balance.body.toString());
  expect(wallet).toEqual({
    business_name: expect.any(String),
    merchant_code: 'M-ALPHA',
    balance: 1_000_000,
    currency: expect.stringMatching(/^[A-Z]{3}$/),
  });
  expect(paid.status).toBe(201);
  expect(paid.headers).not.toHaveProperty('idempotent-replayed');
  expect(JSON.parse(paid.body.toString())).toMatchObject({ success: true, data: { amount: 125.5 } });
  expect([again.status, again.headers['idempotent-replayed']]).toEqual([201, 'true']);
  expect(again.body).toEqual(paid.body);
  expect(await payouts(first)).toBe(1);
  for (const path of ['/healthz', '/readyz', '/metrics']) {
    expect((await send(first.adminUrl, { path })).status, path).toBe(200);
  }
  expect(await first.end('SIGKILL')).toBe('SIGKILL');

  const second = await start(data);
  const later = await runCurl(second.commands[2] ?? '');
  expect([later.status, later.headers['idempotent-replayed']]).toEqual([201, 'true']);
  expect(later.body).toEqual(paid.body);
  expect(await payouts(second)).toBe(1);
  const left = JSON.parse((await runCurl(second.commands[0] ?? '')).body.toString());
  expect(left.data.balance).toBe(1_000_000 - 125.5);
  expect(await second.end('SIGTERM')).toBe(0);
  for (const tour of [first, second]) expect(tour.output()).not.toMatch(/Warning|Error|^\s+at /m);
});

it('start --config runs only the gateway of the configuration, as serve --config does', async () => {
  const folder = newFolder();
  const file = join(folder, 'gateway.yaml');
  writeFileSync(file, stringify(testConfig(folder, 'http://127.0.0.1:9')));
  const env = { ...process.env, ...FAST_START };
  const child = track(spawn(process.execPath, [MAIN, 'start', '--config', file], { env }));
  const exited = once(child, 'exit');
  const output: string[] = [];
  for await (const line of createInterface({ input: child.stdout as NodeJS.ReadableStream })) {
    output.push(line);
    if (line.includes('"msg":"listening"')) break;
  }
  expect(output.join('\n')).not.toContain('sandbox');
  const { port } = JSON.parse(output.at(-1) ?? '');
  expect((await send(`http://127.0.0.1:${port}`)).status).toBe(401);
  child.kill('SIGTERM');
  expect(await exited).toEqual([0, null]);
});
