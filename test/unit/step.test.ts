import { once } from 'node:events';
import { createServer } from 'node:http';
import { expect, onTestFinished, test, vi } from 'vitest';
import { listen } from '../../src/kernel/listen.ts';
import { path, type Step } from '../../src/kernel/step.ts';

type Failed = Parameters<typeof path>[1];

const answers: Failed = (error, _req, res) => void res.writeHead(500).end((error as Error).message);

/** Status and text of the answer of a path of these steps; undefined where the connection was closed instead. */
async function answerOf(steps: Step[], failed: Failed = answers): Promise<[number, string] | undefined> {
  const server = createServer(path(steps, failed));
  onTestFinished(() => void server.close());
  const port = await listen(server, '127.0.0.1', 0);
  try {
    const answer = await fetch(`http://127.0.0.1:${port}/`);
    return [answer.status, await answer.text()];
  } catch {
    return undefined;
  }
}

test('steps come one after the other, until one of them answers', async () => {
  const never = vi.fn();
  const later: Step = async (_req, res, next) => {
    await once(res.setHeader('x', '1').req, 'readable');
    next();
  };
  const steps: Step[] = [(_req, _res, next) => next(), later, (_req, res) => void res.end('here'), never];
  expect(await answerOf(steps)).toEqual([200, 'here']);
  expect(never).not.toHaveBeenCalled();
});

test.each<[string, Step]>([
  [
    'throws',
    () => {
      throw new Error('broken');
    },
  ],
  ['rejects', () => Promise.reject(new Error('broken'))],
  ['passes on', (_req, _res, next) => next(new Error('broken'))],
])('what a step %s is told', async (_how, step) => {
  expect(await answerOf([step])).toEqual([500, 'broken']);
});

test('nobody waits for ever where no step answers', async () => {
  expect(await answerOf([(_req, _res, next) => next()])).toEqual([500, 'no step of the path has answered']);
});

test('a failure to tell of a failure ends the connection, and nothing else', async () => {
  const failed = () => {
    throw new Error('twice');
  };
  expect(await answerOf([() => Promise.reject(new Error('broken'))], failed)).toBeUndefined();
});
