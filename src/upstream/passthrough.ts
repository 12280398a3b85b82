import type { ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import http from 'node:http';
import https from 'node:https';
import type { Socket } from 'node:net';
import { createProxyMiddleware, type Plugin } from 'http-proxy-middleware';
import { contextOf } from '../kernel/context.ts';
import { type Problem, problem, sendProblem } from '../kernel/problem.ts';
import type { RawHeaders } from './headers.ts';
import type { UpstreamOptions } from './options.ts';
import { answer, giveUp, incomplete, nameRequest, refuseAnswer } from './passthrough-answer.ts';

/** What the gateway gives to the pass-through. */
export interface PassthroughOptions {
  upstream: UpstreamOptions;
  /** The request's fields for the backend. */
  headersOf(req: IncomingMessage): string[];
  /** True while the gateway is shutting down: answers then close their connection. */
  draining(): boolean;
  /** Refuses an upgrade that could not be passed on. */
  refuseUpgrade(socket: Socket, refusal: Problem, requestId: string): void;
}

export interface Passthrough {
  /** Requests and WebSockets that are being passed through. */
  readonly open: number;
  handle(req: IncomingMessage, res: ServerResponse): void;
  /** `req` must be authenticated: http-proxy-middleware does not check it. */
  upgrade(req: IncomingMessage, socket: Socket, head: Buffer): void;
  close(): void;
}

/** Requests that are not a declared operation: http-proxy-middleware streams them both ways. */
export function createPassthrough(options: PassthroughOptions): Passthrough {
  const { upstream } = options;
  const Agent = upstream.url.startsWith('https:') ? https.Agent : http.Agent;
  // `timeout` closes idle connections only: a request under way has its own timers.
  const agent = new Agent({
    keepAlive: true,
    timeout: upstream.keepAliveMs,
    maxSockets: upstream.maxStreams,
  });
  const proxy = createProxyMiddleware({
    target: upstream.url,
    changeOrigin: true,
    // With `true` it would listen for upgrades itself, and so bypass authentication.
    ws: false,
    agent,
    selfHandleResponse: true,
    ejectPlugins: true,
    plugins: [watch(options)],
  });
  let open = 0;
  /** Counts a stream until the merchant's side of it closes. Returns the refusal if there are too many. */
  const begin = (req: IncomingMessage, merchant: ServerResponse | Socket): Problem | undefined => {
    if (open >= upstream.maxStreams) {
      const refusal = overloaded();
      contextOf(req).outcome = refusal.code;
      return refusal;
    }
    open++;
    merchant.once('close', () => open--);
    return undefined;
  };
  return {
    get open() {
      return open;
    },
    handle(req, res) {
      if (res.closed) return;
      const refusal = begin(req, res);
      if (refusal) return sendProblem(res, refusal, contextOf(req).requestId);
      const body = framing(req);
      req.headers = { ...toObject(options.headersOf(req)), ...body };
      void proxy(req, res, () => {});
    },
    upgrade(req, socket, head) {
      if (socket.closed) return;
      const refusal = begin(req, socket);
      if (refusal) return options.refuseUpgrade(socket, refusal, contextOf(req).requestId);
      const { upgrade = 'websocket' } = req.headers;
      req.headers = { ...toObject(options.headersOf(req)), connection: 'Upgrade', upgrade };
      proxy.upgrade(req, socket, head);
    },
    close: () => agent.destroy(),
  };
}

/** How the body is framed. Node has removed the framing, and frames the forwarded body by these fields. */
function framing(req: IncomingMessage): http.IncomingHttpHeaders {
  const length = req.headers['content-length'];
  if (req.headers['transfer-encoding'] !== undefined) return { 'transfer-encoding': 'chunked' };
  return length === undefined ? {} : { 'content-length': length };
}

function toObject(headers: RawHeaders): http.IncomingHttpHeaders {
  // Without a prototype: header names such as `constructor` are just names.
  const object: Record<string, string | string[]> = Object.create(null);
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const name = (headers[i] as string).toLowerCase();
    const value = headers[i + 1] as string;
    const before = object[name];
    object[name] = before === undefined ? value : [before, value].flat();
  }
  return object;
}

/** Our timers and answers, instead of the default plugins. */
function watch(options: PassthroughOptions): Plugin {
  const { connectTimeoutMs, responseTimeoutMs } = options.upstream;
  const guard = (proxyReq: ClientRequest, req: IncomingMessage) => {
    const context = contextOf(req);
    guardConnecting(proxyReq, connectTimeoutMs, () => {
      context.passedThrough = 'connected';
    });
    guardWaiting(proxyReq, responseTimeoutMs);
  };
  return (proxy) => {
    proxy.on('proxyReq', (proxyReq, req, res) => {
      guard(proxyReq, req);
      // The merchant did not ask for an upgrade. Without this listener there would be no answer.
      proxyReq.once('upgrade', (_res, backend) => {
        backend.destroy();
        refuseAnswer(req, res);
      });
    });
    proxy.on('proxyReqWs', (proxyReq, req) => {
      guard(proxyReq, req);
      // Before the listeners of http-proxy-middleware, which write the answer.
      for (const event of ['upgrade', 'response']) proxyReq.once(event, (res) => nameRequest(res, req));
      proxyReq.once('upgrade', (_res, backend) => {
        contextOf(req).passedThrough = 'upgraded';
        // If the merchant's connection is destroyed, the piped connection to the backend does not end by itself.
        req.socket.once('close', () => backend.destroy());
      });
    });
    proxy.on('proxyRes', (proxyRes, req, res) => {
      // By then the part of the body that came with the head has been read, and no later event can replace the answer.
      process.nextTick(() => answer(proxyRes, req, res, options.draining()));
    });
    proxy.on('error', (error, req, res) => {
      if (!req) return;
      const context = contextOf(req);
      const { passedThrough } = context;
      const refusal = failure(error as NodeJS.ErrnoException, passedThrough !== 'connecting');
      context.outcome = refusal.code;
      if (!res) return;
      if ('writeHead' in res) giveUp(res as ServerResponse, refusal, context.requestId);
      // The merchant would read an HTTP answer as a WebSocket frame.
      else if (passedThrough === 'upgraded') res.destroy();
      else options.refuseUpgrade(res as Socket, refusal, context.requestId);
    });
  };
}

const overloaded = (): Problem =>
  problem('overloaded', 'Too many streams to the backend are open. The request was not sent; ask again.', {
    retryAfterS: 1,
  });

function failure({ code }: NodeJS.ErrnoException, connected: boolean): Problem {
  if (!connected) return problem('upstream_unreachable', 'The backend cannot be reached; nothing was sent.');
  return incomplete(code === 'ERESPONSETIMEOUT' ? 504 : 502);
}

/** Node has no timer for connecting, TLS included. */
export function guardConnecting(proxyReq: ClientRequest, timeoutMs: number, onConnected: () => void): void {
  const { socket } = proxyReq;
  if (!socket) {
    proxyReq.once('socket', () => guardConnecting(proxyReq, timeoutMs, onConnected));
    return;
  }
  if (!socket.connecting) {
    onConnected();
    return;
  }
  const timer = setTimeout(() => fail(proxyReq, 'ECONNTIMEOUT'), timeoutMs);
  socket.once('encrypted' in socket ? 'secureConnect' : 'connect', () => {
    clearTimeout(timer);
    onConnected();
  });
  socket.once('close', () => clearTimeout(timer));
}

/** A deadline from the request's end to the response's head. */
export function guardWaiting(proxyReq: ClientRequest, timeoutMs: number): void {
  let timer: NodeJS.Timeout | undefined;
  proxyReq.once('finish', () => {
    timer = setTimeout(() => fail(proxyReq, 'ERESPONSETIMEOUT'), timeoutMs);
  });
  for (const event of ['response', 'upgrade', 'close']) proxyReq.once(event, () => clearTimeout(timer));
}

const fail = (proxyReq: ClientRequest, code: string) =>
  proxyReq.destroy(Object.assign(new Error(code), { code }));
