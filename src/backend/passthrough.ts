import type { ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import http from 'node:http';
import https from 'node:https';
import type { Socket } from 'node:net';
import { createProxyMiddleware, type Plugin } from 'http-proxy-middleware';
import type { ClientTls } from '../lib/certificate.ts';
import { contextOf, hasBody } from '../lib/context.ts';
import {
  type Problem,
  problem,
  problemDocument,
  sendProblem,
  sendProblemOnSocket,
  sendProblemOrCut,
} from '../lib/problem.ts';
import { METHODS_WITH_BODY, type RawHeaders } from './headers.ts';
import { answer, incomplete, refuseAnswer, setRequestId } from './passthrough-answer.ts';
import type { UpstreamOptions } from './upstream-options.ts';

export interface PassthroughOptions {
  upstream: UpstreamOptions;
  /** How to connect to an https backend. Default: it must have a certificate of a well-known authority. */
  tls?: ClientTls | undefined;
  /** The header fields with which a request goes to the backend. */
  headersOf(req: IncomingMessage): string[];
  /** True while the gateway is shutting down: responses then close their connection. */
  draining(): boolean;
}

export interface Passthrough {
  /** Requests and WebSockets that are being passed through. */
  readonly open: number;
  handle(req: IncomingMessage, res: ServerResponse): void;
  /** `req` must be authenticated: http-proxy-middleware does not check it. */
  upgrade(req: IncomingMessage, socket: Socket, head: Buffer): void;
  close(): void;
}

/** Streams requests and WebSockets in both directions, with http-proxy-middleware. They never touch the idempotency engine. */
export function createPassthrough(options: PassthroughOptions): Passthrough {
  const { upstream, tls } = options;
  const Agent = upstream.url.startsWith('https:') ? https.Agent : http.Agent;
  // `timeout` closes idle connections only: running requests have the timers below.
  const agentOptions: https.AgentOptions = {
    keepAlive: true,
    timeout: upstream.keepAliveMs,
    maxSockets: upstream.maxStreams,
    // A resumed session is not verified again, and shows the certificate of its first connection, whatever the files hold now.
    maxCachedSessions: 0,
    ...tls?.options,
  };
  const agent = new Agent(agentOptions);
  // The agent reads its options for each new connection; Node's types lack them.
  tls?.certificate.onChange(() =>
    Object.assign((agent as unknown as { options: object }).options, tls.options),
  );
  const proxy = createProxyMiddleware({
    target: upstream.url,
    changeOrigin: true,
    // With `true`, http-proxy-middleware would listen for upgrades itself and bypass authentication.
    ws: false,
    agent,
    selfHandleResponse: true,
    ejectPlugins: true,
    plugins: [timersAndAnswers(options)],
  });
  let open = 0;
  /** Counts a stream until the merchant's connection or response closes. Returns a refusal if too many are open. */
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
      if (refusal) return sendProblem(res, problemDocument(refusal, contextOf(req).requestId));
      const body = framing(req);
      req.headers = { ...toObject(options.headersOf(req)), ...body };
      // All requests of one event loop turn are sent together, and so are all responses. A write that wakes a sleeping process
      // costs several times as much as one to a process that is awake.
      setImmediate(() => {
        if (!res.closed) void proxy(req, res, () => {});
      });
    },
    upgrade(req, socket, head) {
      if (socket.closed) return;
      const refusal = begin(req, socket);
      if (refusal) return sendProblemOnSocket(socket, problemDocument(refusal, contextOf(req).requestId));
      const { upgrade = 'websocket' } = req.headers;
      req.headers = { ...toObject(options.headersOf(req)), connection: 'Upgrade', upgrade };
      proxy.upgrade(req, socket, head);
    },
    close: () => agent.destroy(),
  };
}

/**
 * Node decodes the body and does not forward its framing. These fields make Node frame it again in the same way.
 * http-proxy-middleware closes the connection after chunks.
 */
function framing(req: IncomingMessage): http.IncomingHttpHeaders {
  const length = req.headers['content-length'];
  if (req.headers['transfer-encoding'] !== undefined) return { 'transfer-encoding': 'chunked' };
  if (length === undefined) return {};
  return {
    'content-length': length,
    ...(hasBody(req) && !METHODS_WITH_BODY.includes(req.method ?? '') && { connection: 'close' }),
  };
}

function toObject(headers: RawHeaders): http.IncomingHttpHeaders {
  // Without a prototype, so that `constructor` is an ordinary header name.
  const object: Record<string, string | string[]> = Object.create(null);
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const name = (headers[i] as string).toLowerCase();
    const value = headers[i + 1] as string;
    const before = object[name];
    object[name] = before === undefined ? value : [before, value].flat();
  }
  return object;
}

/** Replaces the default plugins of http-proxy-middleware. */
function timersAndAnswers(options: PassthroughOptions): Plugin {
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
      // Node would use the connection again unless the backend closes it or says that it will.
      if (proxyReq.getHeader('connection') === 'close') proxyReq.shouldKeepAlive = false;
      // If the body was read, the request has ended, and piping it only ends this one.
      const { body } = contextOf(req);
      if (body && body.length > 0) proxyReq.write(body);
      // Some servers send the body that such a response only announces. Node would take it for the response to the next request.
      proxyReq.once('response', (proxyRes) => {
        const isBodiless = proxyReq.method === 'HEAD' || [204, 304].includes(proxyRes.statusCode ?? 0);
        if (isBodiless && hasBody(proxyRes)) proxyReq.shouldKeepAlive = false;
      });
      // A backend may upgrade a request that did not ask for it. Without this listener the merchant would get no answer.
      proxyReq.once('upgrade', (_res, backend) => {
        backend.destroy();
        refuseAnswer(req, res);
      });
    });
    proxy.on('proxyReqWs', (proxyReq, req) => {
      guard(proxyReq, req);
      // Runs before http-proxy-middleware's own listeners, which write the answer.
      for (const event of ['upgrade', 'response']) proxyReq.once(event, (res) => setRequestId(res, req));
      // A backend that has refused an upgrade may read no further request on that connection.
      proxyReq.once('response', () => {
        proxyReq.shouldKeepAlive = false;
      });
      proxyReq.once('upgrade', (_res, backend) => {
        contextOf(req).passedThrough = 'upgraded';
        // A pipe does not close its target when its source is destroyed.
        req.socket.once('close', () => backend.destroy());
      });
    });
    proxy.on('proxyRes', (proxyRes, req, res) => {
      // By then Node has parsed the part of the body that came with the head. If that part is invalid, the error event comes
      // before the head is sent on.
      setImmediate(() => answer(proxyRes, req, res, options.draining()));
    });
    proxy.on('error', (error, req, res) => {
      if (!req) return;
      const context = contextOf(req);
      const { passedThrough } = context;
      const refusal = failure(error as NodeJS.ErrnoException, passedThrough !== 'connecting');
      context.outcome = refusal.code;
      if (!res) return;
      const document = problemDocument(refusal, context.requestId);
      if ('writeHead' in res) sendProblemOrCut(res as ServerResponse, document);
      // After the upgrade the merchant would read an HTTP response as a WebSocket frame.
      else if (passedThrough === 'upgraded') res.destroy();
      else sendProblemOnSocket(res as Socket, document);
    });
  };
}

const overloaded = (): Problem =>
  problem('overloaded', 'Too many streams to the backend are open. The request was not sent; ask again.');

function failure({ code }: NodeJS.ErrnoException, connected: boolean): Problem {
  if (!connected) return problem('upstream_unreachable', 'The backend cannot be reached; nothing was sent.');
  return incomplete(code === 'ERESPONSETIMEOUT' ? 504 : 502);
}

/** Limits the time to connect, TLS included. Node has no such timer. */
function guardConnecting(proxyReq: ClientRequest, timeoutMs: number, onConnected: () => void): void {
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

/** Limits the time from the end of the request to the head of the response. */
function guardWaiting(proxyReq: ClientRequest, timeoutMs: number): void {
  let timer: NodeJS.Timeout | undefined;
  proxyReq.once('finish', () => {
    timer = setTimeout(() => fail(proxyReq, 'ERESPONSETIMEOUT'), timeoutMs);
  });
  for (const event of ['response', 'upgrade', 'close']) proxyReq.once(event, () => clearTimeout(timer));
}

const fail = (proxyReq: ClientRequest, code: string) =>
  proxyReq.destroy(Object.assign(new Error(code), { code }));
