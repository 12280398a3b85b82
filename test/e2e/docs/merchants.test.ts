import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { parseFaults } from '../../../src/sandbox/faults.ts';
import { FAST_START, inShell } from '../../support/command.ts';
import { temporaryFolder } from '../../support/config.ts';
import { commandsUnder } from '../../support/documents.ts';
import { MAIN, track } from '../../support/spawn.ts';
import { openStack, type Stack } from '../../support/stack.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const ADDRESS = 'https://payments.example.com';
const env = { SECRET_KEY: 'sk_sandbox_alpha' };

let stack: Stack;
beforeAll(async () => {
  stack = await openStack();
});
afterAll(() => stack.close());

it('the first payout of docs/merchants.md is paid once, and replayed', async () => {
  const [pay, example, ...others] = commandsUnder('docs/merchants.md', 'The first payout');
  expect(others).toEqual([]);
  const command = (pay?.text ?? '').replace(ADDRESS, stack.url);
  const [first, second] = [await inShell(command, { env }), await inShell(command, { env })];
  const [, key = ''] = /x-service-idempotency: ([\w-]+)/.exec(command) ?? [];
  expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
  expect(first).toMatch(/^HTTP\/1.1 201 Created/);
  expect(second).toContain('Idempotent-Replayed: true');
  expect(second.split('\r\n\r\n')[1]).toBe(first.split('\r\n\r\n')[1]);

  const before = stack.sandbox.ledger.payouts();
  const run = (example?.text ?? '')
    .replace(ADDRESS, stack.url)
    .replace('SECRET_KEY=...', `SECRET_KEY=${env.SECRET_KEY}`)
    .replace('examples/', `${ROOT}examples/`);
  const cwd = temporaryFolder();
  for (const _ of [1, 2]) expect(await inShell(run, { cwd })).toContain('wd_');
  expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
});

it('a client that tries what docs/merchants.md says pays once', async () => {
  const [start, look, ...others] = commandsUnder('docs/merchants.md', 'Try your client');
  expect(others).toEqual([]);
  const free = ['--port', '0', '--admin-port', '0', '--sandbox-port', '0', '--data', temporaryFolder()];
  const [, ...args] = (start?.text ?? '').split(' ');
  const child = track(
    spawn(process.execPath, [MAIN, ...args, ...free], { env: { ...process.env, ...FAST_START } }),
  );
  const urls: Record<string, string> = {};
  for await (const line of createInterface(child.stdout as Readable)) {
    const [, server, url] = /^ {2}(gateway|sandbox) +(http:\S+)/.exec(line) ?? [];
    if (server && url) urls[server] = url;
    if (line.startsWith('3. ')) break;
  }
  const client = `sh ${ROOT}examples/payout.sh invoice-7 12.5 058 0123456789`;
  const merchant = { cwd: temporaryFolder(), env: { ...env, API_URL: urls.gateway } };
  for (const _ of [1, 2])
    await expect(inShell(client, merchant)).rejects.toMatchObject({
      code: 2,
      stderr: expect.stringContaining('unknown: do not pay by other means'),
    });
  const command = (look?.text ?? '').replace('http://127.0.0.1:9000', urls.sandbox ?? '');
  expect(await inShell(command, {})).toBe(look?.output);
  child.kill();
});

it('docs/merchants.md names faults that the sandbox has', () => {
  const lists = readFileSync(`${ROOT}docs/merchants.md`, 'utf8').matchAll(/--fault ([\w=,-]+)/g);
  const parsed = [...lists].map(([, list = '']) => parseFaults(list).ok);
  expect(parsed.length).toBeGreaterThan(4);
  expect(parsed).not.toContain(false);
});
