import { type ChildProcess, spawn } from 'node:child_process';
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { Socket } from 'node:net';
import { delimiter, join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { afterAll } from 'vitest';
import { listen } from '../../../src/gateway/http-server.ts';
import { spawnInheriting, track, watch } from '../../support/spawn.ts';

/** A shell that keeps its variables from one text to the next, as that of a person who pastes commands. It stops at a failure. */
export interface Shell {
  /** @returns what it printed, standard error included. @throws with that if a command failed */
  run(text: string): Promise<string>;
  end(): void;
}

export function openShell(cwd: string, env: NodeJS.ProcessEnv): Shell {
  const child = track(
    spawn('sh', ['-c', 'exec 2>&1; while IFS= read -r file; do . "$file"; echo "end of $file"; done'], {
      cwd,
      env,
    }),
  );
  const { stdin, stdout } = child;
  if (!stdin || !stdout) throw new Error('the shell has no pipes');
  // The shell ends when a command fails.
  stdin.on('error', () => {});
  const lines = createInterface(stdout)[Symbol.asyncIterator]();
  let count = 0;
  return {
    async run(text) {
      const file = join(cwd, `.pasted-${++count}`);
      writeFileSync(file, `set -eu\n${text}\n`);
      stdin.write(`${file}\n`);
      const printed: string[] = [];
      for (;;) {
        const { value, done } = await lines.next();
        if (done) throw new Error(`a command failed; the last output was:\n${printed.join('\n')}`);
        // An output without a line's end is in front of it.
        if (value.endsWith(`end of ${file}`)) {
          printed.push(value.slice(0, -`end of ${file}`.length));
          return printed.join('\n').trimEnd();
        }
        printed.push(value);
      }
    },
    end: () => void child.kill('SIGKILL'),
  };
}

/**
 * Programs that stand in for others in a folder of their own. Each call goes to `act` with the whole command line, and fails if it
 * throws.
 *
 * @returns the folder, for the front of PATH
 */
export async function standIns(
  folder: string,
  names: string[],
  act: (line: string) => Promise<void> | void,
): Promise<string> {
  const server = createServer(async (req, res) => {
    const line = await text(req);
    try {
      await act(line);
      res.end();
    } catch (error) {
      res.writeHead(500).end(`${line}: ${(error as Error).message}\n`);
    }
  });
  const url = `http://127.0.0.1:${await listen(server, '127.0.0.1', 0)}`;
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });
  const bin = join(folder, 'bin');
  mkdirSync(bin);
  for (const name of names)
    script(join(bin, name), `exec curl -s --fail-with-body --data-raw "${name} $*" ${url}`);
  return bin;
}

/** Writes a shell script that can be run. */
export function script(path: string, body: string): void {
  writeFileSync(path, `#!/bin/sh\n${body}\n`);
  chmodSync(path, 0o755);
}

/**
 * What systemd does with a unit, as far as it can be done without it: environment, socket, ExecStart.
 *
 * @param instance of a template
 */
export async function startUnit(path: string, inherited: Socket, instance = ''): Promise<ChildProcess> {
  const lines = readFileSync(path, 'utf8').replaceAll('%i', instance).split('\n');
  const valuesOf = (name: string) =>
    lines.filter((line) => line.startsWith(`${name}=`)).map((line) => line.slice(name.length + 1));
  const [file = ''] = valuesOf('EnvironmentFile');
  const assignments = [
    ...valuesOf('Environment')
      .flatMap((line) => line.match(/"[^"]*"|[^" ]+/g) ?? [])
      .map((assignment) => assignment.replaceAll('"', '')),
    ...readFileSync(file.replace(/^-/, ''), 'utf8').trimEnd().split('\n'),
  ];
  const env = Object.fromEntries(assignments.map((line) => line.split(/=(.*)/s).slice(0, 2)));
  const [line = ''] = valuesOf('ExecStart');
  const [program = '', ...args] = line.split(' ');
  const child = track(spawnInheriting([inherited], [program, ...args], env));
  await watch(child).printed(/"msg":"listening"/);
  return child;
}

/** `folders` in front of this process's PATH. */
export const pathWith = (...folders: string[]): string => [...folders, process.env.PATH].join(delimiter);
