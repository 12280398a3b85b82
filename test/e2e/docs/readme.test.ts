import { execFile, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseConfig } from '../../../src/config/load.ts';
import { temporaryFolder } from '../../support/config.ts';
import { track } from '../../support/spawn.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const README = readFileSync(`${ROOT}README.md`, 'utf8');

/** Commands of the README, each with the output that the README shows. */
const commands = [...README.matchAll(/```console\n(.*?)```/gs)].flatMap(([, block = '']) =>
  block
    .split(/^\$ /m)
    .slice(1)
    .map((text) => {
      const [command = '', ...output] = text.trimEnd().split('\n');
      return { command, output: output.join('\n').trimEnd() };
    }),
);
const shellCommands = commands.filter(({ command }) => /^(?:curl|for|printf)\b/.test(command));

/** Replaces what differs between runs, such as ids and times. */
const steady = (text: string) =>
  text
    .replace(/\r/g, '')
    .replace(/(wd_)[0-9a-f]{32}/g, '$1ID')
    .replace(/\d{4}-\d{2}-\d{2}T[\d:.]+Z/g, 'TIME')
    .replace(/^Date: .*$/gm, 'Date: NOW')
    .replace(/^((?:X|Idempotent-Original)-Request-Id): [0-9a-f-]{36}$/gm, '$1: ID')
    .trimEnd();

describe('the README', () => {
  let ports: Record<string, string> = {};
  let end: () => void = () => {};

  beforeAll(async () => {
    const free = ['--port', '0', '--admin-port', '0', '--sandbox-port', '0', '--data', temporaryFolder()];
    const child = track(spawn('npm', ['start', '--', ...free], { cwd: ROOT, detached: true }));
    // npm does not forward signals, so the whole process group is stopped.
    end = () => process.kill(-(child.pid as number), 'SIGKILL');
    process.once('exit', end);
    let errors = '';
    child.stderr?.on('data', (chunk) => {
      errors += chunk;
    });
    ports = await new Promise((resolve, reject) => {
      const found: Record<string, string> = {};
      createInterface({ input: child.stdout as NodeJS.ReadableStream }).on('line', (line) => {
        const [, what, port] = line.match(/^ {2}(gateway|sandbox) +http:\/\/127\.0\.0\.1:(\d+)/) ?? [];
        if (what && port) found[what] = port;
        if (line.startsWith('3. ')) resolve(found);
      });
      child.once('exit', (code) => reject(new Error(`npm start ended with ${code}: ${errors}`)));
    });
  });

  afterAll(() => {
    process.off('exit', end);
    end();
  });

  it('has a tour to run, and names the commands that start and test the project', () => {
    expect(shellCommands.length).toBeGreaterThanOrEqual(7);
    const others = commands.filter((command) => !shellCommands.includes(command));
    expect(others.map(({ command }) => command)).toEqual(['npm start', 'npm test']);
    expect(readFileSync(`${ROOT}.ci/run`, 'utf8')).toMatch(/^npm test$/m);
  });

  it.each(shellCommands)('keeps its word: $command', async ({ command, output }) => {
    const here = command
      .replaceAll('127.0.0.1:8080', `127.0.0.1:${ports.gateway}`)
      .replaceAll('127.0.0.1:9000', `127.0.0.1:${ports.sandbox}`);
    const { stdout } = await promisify(execFile)('sh', ['-c', here], { cwd: ROOT });
    expect(steady(stdout)).toBe(steady(output));
  });

  it('shows configurations that are valid', () => {
    const blocks = [...README.matchAll(/```yaml\n(.*?)```/gs)].map(([, block = '']) => block);
    const whole = blocks.filter((block) => block.includes('upstream:'));
    const parts = [...README.matchAll(/`(store: \{.*?\})`/g)].map(([, part = '']) => part);
    const env = { ONCEGATE_PEPPER: 'a-long-random-pepper', REDIS_URL: 'redis://127.0.0.1:6379' };
    expect(whole).toHaveLength(1);
    expect(parts).toHaveLength(1);
    for (const text of whole) expect(parseConfig(text, env).store.kind).toBe('sqlite');
    for (const text of parts) {
      expect(parseConfig(`upstream: { url: "http://127.0.0.1:9000" }\n${text}`, env).store.kind).toBe(
        'redis',
      );
    }
  });
});
