import { beforeAll, describe, expect, it } from 'vitest';
import { parseConfig } from '../../../src/config/load.ts';
import { parseFaults } from '../../../src/sandbox/faults.ts';
import { inShell, newFolder } from '../../support/command.ts';
import { blocksOf, commandsOf, commandsUnder, steady } from '../../support/documents.ts';
import { ROOT, read } from '../../support/repository.ts';
import { stackForFile } from '../../support/stack.ts';
import { startTour } from '../../support/tour.ts';

/** Commands of the README, each with the output that the README shows. */
const commands = blocksOf('README.md')
  .filter(({ language }) => language === 'console')
  .flatMap(commandsOf);
const shellCommands = commands.filter(({ text }) => /^(?:curl|sh)\b/.test(text));

describe('the README', () => {
  let urlOf: Awaited<ReturnType<typeof startTour>>['urlOf'];
  beforeAll(async () => {
    ({ urlOf } = await startTour(['--data', newFolder()], { program: ['npm', 'start', '--'], cwd: ROOT }));
  });

  it('has a tour to run, and names the commands that start and test the project', () => {
    expect(shellCommands.length).toBeGreaterThanOrEqual(6);
    const others = commands.filter((command) => !shellCommands.includes(command));
    expect(others.map(({ text }) => text)).toEqual(['npm start']);
    expect(commands.filter(({ text }) => text.length > 78)).toEqual([]);
    expect(read('README.md')).toContain('`npm test`');
    expect(read('.ci/run')).toMatch(/^npm run test:all -- --install$/m);
  });

  it.each(shellCommands)('shows what the command prints: $text', async ({ text, output }) => {
    const here = text.replaceAll('http://127.0.0.1:9000', urlOf('sandbox'));
    const env = { API_URL: urlOf('gateway') };
    expect(steady(await inShell(here, { cwd: ROOT, env }))).toBe(steady(output));
  });

  it('shows configurations that are valid', () => {
    const README = read('README.md');
    const whole = blocksOf('README.md').filter(
      ({ language, text }) => language === 'yaml' && text.includes('upstream:'),
    );
    const parts = [...README.matchAll(/`(store: \{.*?\})`/g)].map(([, part = '']) => part);
    const DATABASE_URL = 'postgres://oncegate@127.0.0.1/payments';
    const env = { ONCEGATE_PEPPER: 'a-long-random-pepper', DATABASE_URL };
    expect([whole.length, parts.length]).toEqual([1, 1]);
    expect(parseConfig(whole[0]?.text ?? '', env).store.kind).toBe('sqlite');
    const upstream = 'upstream: { url: "http://127.0.0.1:9000" }';
    expect(parseConfig(`${upstream}\n${parts[0]}`, env).store.kind).toBe('postgres');
  });
});

const ADDRESS = 'https://payments.example.com';
const env = { SECRET_KEY: 'sk_sandbox_alpha' };

const stack = await stackForFile();

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
  const cwd = newFolder();
  for (const _ of [1, 2]) expect(await inShell(run, { cwd })).toContain('wd_');
  expect(stack.sandbox.ledger.payouts()).toBe(before + 1);
});

it('a client that tries what docs/merchants.md says pays once', async () => {
  const [start, look, ...others] = commandsUnder('docs/merchants.md', 'Try your client');
  expect(others).toEqual([]);
  const [, , ...args] = (start?.text ?? '').split(' ');
  const tour = await startTour([...args, '--data', newFolder()]);
  const client = `sh ${ROOT}examples/payout.sh invoice-7 12.5 058 0123456789`;
  const merchant = { cwd: newFolder(), env: { ...env, API_URL: tour.urlOf('gateway') } };
  for (const _ of [1, 2])
    await expect(inShell(client, merchant)).rejects.toMatchObject({
      code: 2,
      stderr: expect.stringContaining('unknown: do not pay by other means'),
    });
  const command = (look?.text ?? '').replace('http://127.0.0.1:9000', tour.urlOf('sandbox'));
  expect(await inShell(command, {})).toBe(look?.output);
});

it('docs/merchants.md names faults that the sandbox has', () => {
  const lists = read('docs/merchants.md').matchAll(/--fault ([\w=,-]+)/g);
  const parsed = [...lists].map(([, list = '']) => typeof parseFaults(list));
  expect(parsed.length).toBeGreaterThan(4);
  expect(parsed).not.toContain('string');
});
