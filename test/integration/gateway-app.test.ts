import { once } from 'node:events';
import { createServer } from 'node:http';
import { expect, onTestFinished, test, vi } from 'vitest';
import { createApp } from '../../src/gateway/app.ts';
import { listen } from '../../src/gateway/http-server.ts';
import type { Middleware } from '../../src/lib/context.ts';
import { isProblem, problem } from '../../src/lib/problem.ts';
import { rawExchange } from '../support/raw.ts';

const passes: Middleware = (_req, _res, next) => next();
const ORDER = ['admit', 'checkHead', 'authenticate', 'identify', 'authorise', 'protect', 'forward'] as const;

type Parts = { [Name in (typeof ORDER)[number]]?: Middleware };

const answers: Parameters<typeof createApp>[1] = (refusal, _req, res) => {
  if (res.headersSent) return;
  const text = isProblem(refusal) ? refusal.code : (refusal as Error).message;
  res.writeHead(500, { 'Content-Length': text.length }).end(text);
};

/** Starts a server with these middlewares; all others only call `next`. It is closed at the end of the test. */
async function serve(parts: Parts): Promise<number> {
  const { admit = passes, checkHead = passes, ...others } = parts;
  const path = ORDER.slice(2).map((name) => others[name as keyof typeof others] ?? passes);
  const { handle, Request, Response } = createApp([admit, checkHead, ...path], answers);
  const server = createServer({ IncomingMessage: Request, ServerResponse: Response }, handle);
  onTestFinished(() => void server.close());
  return await listen(server, '127.0.0.1', 0);
}

/** Status and text of the answer of a server with these middlewares. */
async function answerOf(parts: Parts): Promise<[number, string]> {
  const answer = await fetch(`http://127.0.0.1:${await serve(parts)}/`);
  return [answer.status, await answer.text()];
}

test('the middlewares run in the order of the path', async () => {
  const seen: string[] = [];
  const noted = ORDER.map((name): [string, Middleware] => [
    name,
    (_req, res, next) => {
      seen.push(name);
      if (name === 'forward') res.end('here');
      else next();
    },
  ]);
  expect(await answerOf(Object.fromEntries(noted))).toEqual([200, 'here']);
  expect(seen).toEqual(ORDER);
});

test('middlewares may be asynchronous, and none runs after the one that answers', async () => {
  const never = vi.fn();
  const identify: Middleware = async (req, _res, next) => {
    await once(req, 'readable');
    next();
  };
  const authorise: Middleware = (_req, res) => void res.end('here');
  expect(await answerOf({ identify, authorise, protect: never, forward: never })).toEqual([200, 'here']);
  expect(never).not.toHaveBeenCalled();
});

test.each<[string, Middleware]>([
  [
    'throws',
    () => {
      throw new Error('broken');
    },
  ],
  ['rejects', () => Promise.reject(new Error('broken'))],
  ['passes on', (_req, _res, next) => next(new Error('broken'))],
])('an error that a middleware %s goes to answerRefusal', async (_how, authenticate) => {
  const never = vi.fn();
  expect(await answerOf({ authenticate, identify: never })).toEqual([500, 'broken']);
  expect(never).not.toHaveBeenCalled();
});

test.each<[string, Middleware]>([
  ['passes on', (_req, _res, next) => next(new Error('broken'))],
  [
    'throws',
    () => {
      throw new Error('broken');
    },
  ],
  ['rejects', () => Promise.reject(new Error('broken'))],
])('no middleware runs after an error that one %s, also if it calls next again', async (_how, fails) => {
  const never = vi.fn();
  const { promise: again, resolve } = Promise.withResolvers<void>();
  const authenticate: Middleware = (req, res, next) => {
    res.once('finish', () => {
      next();
      resolve();
    });
    return fails(req, res, next);
  };
  const others = { identify: never, authorise: never, protect: never, forward: never };
  expect(await answerOf({ authenticate, ...others })).toEqual([500, 'broken']);
  await again;
  expect(never).not.toHaveBeenCalled();
});

test.each<[string, Middleware]>([
  [
    'throws',
    () => {
      throw undefined;
    },
  ],
  ['rejects', () => Promise.reject(undefined)],
])('no middleware runs after one that %s without a reason', async (_how, authenticate) => {
  const never = vi.fn();
  const without = [500, 'a middleware failed without a reason'];
  expect(await answerOf({ authenticate, identify: never, forward: never })).toEqual(without);
  expect(never).not.toHaveBeenCalled();
});

test('a middleware may reject where an application has replaced the global Promise', async () => {
  const admit: Middleware = (_req, _res, next) => {
    vi.stubGlobal('Promise', class {});
    next();
    vi.unstubAllGlobals();
  };
  const authenticate: Middleware = async () => {
    throw new Error('broken');
  };
  expect(await answerOf({ admit, authenticate })).toEqual([500, 'broken']);
});

test('a request that no middleware answers gets an error', async () => {
  expect(await answerOf({})).toEqual([500, 'no middleware has answered']);
});

test.each(['a://', 'http://?/v1', '*', 'http://x/y'])(
  'a target without a path, %s, is admitted and checked',
  async (target) => {
    const seen: string[] = [];
    const admit: Middleware = (_req, _res, next) => {
      seen.push('admit');
      next();
    };
    const checkHead: Middleware = (_req, _res, next) => {
      seen.push('checkHead');
      next(problem('invalid_target', 'x'));
    };
    const authenticate: Middleware = () => expect.fail('the target went on');
    const port = await serve({ admit, checkHead, authenticate });
    const bytes = `GET ${target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`;
    const [answer] = await rawExchange(port, bytes);
    expect([answer?.status, answer?.body.toString()]).toEqual([500, 'invalid_target']);
    expect(seen).toEqual(['admit', 'checkHead']);
  },
);
