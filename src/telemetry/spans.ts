import type { IncomingMessage } from 'node:http';
import type * as otel from '@opentelemetry/api';
import type { Clock } from '../lib/clock.ts';
import type { RequestContext } from '../lib/context.ts';
import type { OwnRequest, RequestEnd, SentStep, Spans, Step, StepName } from '../lib/trace.ts';
import { pathOf } from '../requests/target.ts';
import { loggablePath } from './logger.ts';
import { formatTraceparent, type TraceParent } from './traceparent.ts';

/** The OpenTelemetry API, as far as spans need it. It is loaded only if spans are exported. */
export type Api = Pick<typeof otel, 'ROOT_CONTEXT' | 'SpanKind' | 'SpanStatusCode' | 'TraceFlags' | 'trace'>;

/** What makes and sends spans. */
export interface Recorder {
  api: Api;
  tracer: otel.Tracer;
  clock: Clock;
  /** Origin of the backend. */
  upstream: URL;
  /** Sends the spans that still wait, within a bound. */
  close(): Promise<void>;
}

/** `_OTHER` stands for methods that are not known, because merchants could make up any number. */
const METHODS = /^(?:CONNECT|DELETE|GET|HEAD|OPTIONS|PATCH|POST|PUT|TRACE)$/;
const methodOf = (method = ''): string => (METHODS.test(method) ? method : '_OTHER');

/** Spans with the attributes of OpenTelemetry's conventions for HTTP. Never a key, a query, a body or a field of a header. */
export class RequestSpans implements Spans {
  readonly #recorder: Recorder;
  readonly #req: IncomingMessage;
  readonly #context: RequestContext;
  readonly #flags: number;
  readonly #keepState: boolean;
  /** Added to monotonic times. The same for all spans of the request, so that their order and distances are exact. */
  readonly #wallOffsetMs: number;
  readonly #span: otel.Span;
  readonly #parent: otel.Context;
  #sent: SentStep | undefined;

  constructor(
    recorder: Recorder,
    req: IncomingMessage,
    context: RequestContext,
    parent: TraceParent | undefined,
    keepState: boolean,
  ) {
    const { api, tracer, clock } = recorder;
    this.#recorder = recorder;
    this.#wallOffsetMs = clock.wallMs() - clock.monotonicMs();
    this.#req = req;
    this.#context = context;
    this.#flags = parent?.flags ?? 0;
    this.#keepState = keepState;
    const method = methodOf(req.method);
    this.#span = tracer.startSpan(
      method === '_OTHER' ? 'HTTP' : method,
      {
        kind: api.SpanKind.SERVER,
        startTime: this.#now(),
        attributes: {
          'http.request.method': method,
          'url.scheme': 'encrypted' in req.socket ? 'https' : 'http',
          'network.protocol.version': req.httpVersion,
          'client.address': context.client.address,
          'oncegate.request_id': context.requestId,
        },
      },
      parent ? remote(api, parent) : api.ROOT_CONTEXT,
    );
    this.#parent = api.trace.setSpan(api.ROOT_CONTEXT, this.#span);
    // For a request to the backend whose sending is not a step of its own.
    this.#passOn(this.#span);
  }

  get traceId(): string {
    return this.#span.spanContext().traceId;
  }

  begin(name: StepName): Step {
    const { api, tracer } = this.#recorder;
    const span = tracer.startSpan(name, { startTime: this.#now() }, this.#parent);
    return {
      end: (result, error) => {
        span.setAttribute('oncegate.result', result);
        if (error !== undefined) fail(api, span, error);
        span.end(this.#now());
      },
    };
  }

  send(): SentStep {
    const { api, tracer } = this.#recorder;
    const attributes = clientAttributes(
      this.#recorder,
      methodOf(this.#req.method),
      shownPathOf(this.#context, this.#req),
    );
    const options = { kind: api.SpanKind.CLIENT, startTime: this.#now(), attributes };
    const span = tracer.startSpan('upstream', options, this.#parent);
    this.#passOn(span);
    this.#sent = {
      end: (status, error) => {
        this.#sent = undefined;
        endClient(api, span, status, error, this.#now());
      },
    };
    return this.#sent;
  }

  end({ operation, outcome, status, merchantGone }: RequestEnd): void {
    const { api } = this.#recorder;
    const { merchant, identity, recordId } = this.#context;
    const route = identity?.route;
    this.#sent?.end(status, merchantGone && status === undefined ? 'merchant_gone' : undefined);
    const span = this.#span;
    const method = methodOf(this.#req.method);
    if (route !== undefined) span.updateName(`${method === '_OTHER' ? 'HTTP' : method} ${route}`);
    // OpenTelemetry leaves out what is undefined.
    span.setAttributes({
      'url.path': shownPathOf(this.#context, this.#req),
      'http.route': route,
      'http.response.status_code': status,
      'oncegate.operation': operation,
      'oncegate.outcome': outcome,
      'oncegate.replayed': outcome === 'replayed',
      'oncegate.merchant': merchant?.code,
      // The first digits, as in the log.
      'oncegate.record_id': recordId?.slice(0, 16),
      'oncegate.merchant_gone': merchantGone || undefined,
    });
    // A refusal of the merchant's request is no failure of the server.
    if (status !== undefined && status >= 500)
      fail(api, span, isOwnAnswer(outcome) ? outcome : String(status));
    span.end(this.#now());
  }

  #now(): number {
    return this.#wallOffsetMs + this.#recorder.clock.monotonicMs();
  }

  /** What is sent to the backend from now on is a child of this span. */
  #passOn(span: otel.Span): void {
    const { traceId, spanId } = span.spanContext();
    const traceparent = formatTraceparent(traceId, spanId, true, this.#flags);
    this.#context.traceContext = { traceparent, keepState: this.#keepState, isSampled: true };
  }
}

/** Begins the span of a request of the gateway itself, which is the root of its trace. */
export function beginOwnRequest(recorder: Recorder, name: 'lookup' | 'key_probe', path: string): OwnRequest {
  const { api, tracer } = recorder;
  const attributes = clientAttributes(recorder, 'GET', pathOf(path));
  const span = tracer.startSpan(name, { kind: api.SpanKind.CLIENT, attributes }, api.ROOT_CONTEXT);
  const { traceId, spanId } = span.spanContext();
  return {
    traceparent: formatTraceparent(traceId, spanId, true),
    end: (status, error) => endClient(api, span, status, error),
  };
}

/** The span of whoever sent the request. */
const remote = (api: Api, { traceId, parentId }: TraceParent): otel.Context =>
  api.trace.setSpanContext(api.ROOT_CONTEXT, {
    traceId,
    spanId: parentId,
    traceFlags: api.TraceFlags.SAMPLED,
    isRemote: true,
  });

function clientAttributes({ upstream }: Recorder, method: string, path: string): otel.Attributes {
  const { hostname, port, protocol, origin } = upstream;
  return {
    'http.request.method': method,
    'server.address': hostname,
    'server.port': Number(port) || (protocol === 'https:' ? 443 : 80),
    'url.full': `${origin}${path}`,
  };
}

/** Ends the span of a client, which counts a status of 400 and above as an error, as the conventions say. */
function endClient(
  api: Api,
  span: otel.Span,
  status: number | undefined,
  error: string | undefined,
  atMs?: number,
): void {
  if (status !== undefined) span.setAttribute('http.response.status_code', status);
  const failure = error ?? (status !== undefined && status >= 400 ? String(status) : undefined);
  if (failure !== undefined) fail(api, span, failure);
  span.end(atMs);
}

function fail(api: Api, span: otel.Span, error: string): void {
  span.setAttribute('error.type', error);
  span.setStatus({ code: api.SpanStatusCode.ERROR });
}

/** Outcomes with which the status is the backend's. With others, the outcome is the code of the gateway's own problem. */
const FROM_BACKEND = new Set(['executed', 'released', 'forwarded', 'replayed', 'passed_through', 'upgraded']);
const isOwnAnswer = (outcome: string): boolean => !FROM_BACKEND.has(outcome);

/** The declared path, or the path without anything that a merchant may have put into it. */
function shownPathOf({ identity }: RequestContext, { url = '' }: IncomingMessage): string {
  return identity?.route ?? loggablePath(pathOf(url));
}
