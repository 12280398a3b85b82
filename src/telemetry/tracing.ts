import type { IncomingMessage } from 'node:http';
import type { RequestContext } from '../lib/context.ts';
import type { OwnRequest } from '../lib/trace.ts';
import { beginOwnRequest, type Recorder, RequestSpans } from './spans.ts';
import type { TracingOptions } from './telemetry-options.ts';
import {
  formatTraceparent,
  isStateShort,
  keepTrace,
  newSpanId,
  newTraceId,
  readTraceparent,
  SAMPLED,
  type TraceParent,
} from './traceparent.ts';

/** Gives each request its trace, and records the spans of some. */
export class Tracing {
  readonly #options: TracingOptions;
  readonly #recorder: Recorder | undefined;

  /** @param recorder without it, nothing is recorded */
  constructor(options: TracingOptions, recorder?: Recorder) {
    this.#options = options;
    this.#recorder = recorder;
  }

  /** Puts the request's trace into its context. */
  begin(req: IncomingMessage, context: RequestContext): void {
    const parent = readTraceparent(req.headers.traceparent);
    context.traceId = parent?.traceId;
    const keepState = parent !== undefined && isStateShort(req.headers);
    if (this.#recorder && this.#isRecorded(parent, context)) {
      const spans = new RequestSpans(this.#recorder, req, context, parent, keepState);
      context.traceId = spans.traceId;
      context.spans = spans;
    } else if (this.#recorder || (this.#options.begin && !parent)) {
      context.traceId ??= newTraceId();
      // Without spans, the gateway decides for the backend too, which may have a collector of its own.
      const isSampled = !this.#recorder && Math.random() < this.#options.ratio;
      const traceparent = formatTraceparent(context.traceId, newSpanId(), isSampled, parent?.flags);
      context.traceContext = { traceparent, keepState, isSampled };
    } else keepTrace(req.headers, context);
  }

  /** The lot decides, and not the trace id: merchants choose those, and could choose some that are recorded. */
  #isRecorded(parent: TraceParent | undefined, { client }: RequestContext): boolean {
    const { ratio, believeSampled } = this.#options;
    const isBelieved = believeSampled === 'always' || (believeSampled === 'proxies' && client.isPeerTrusted);
    return parent && isBelieved ? (parent.flags & SAMPLED) !== 0 : Math.random() < ratio;
  }

  /**
   * Begins a request of the gateway itself to the backend, in a trace of its own, if it is sampled.
   *
   * @param path without anything that a merchant may have put into it. Its query is left out
   */
  beginOwn(name: 'lookup' | 'key_probe', path: string): OwnRequest | undefined {
    if (!this.#recorder || Math.random() >= this.#options.ratio) return undefined;
    return beginOwnRequest(this.#recorder, name, path);
  }

  /** Sends the spans that still wait, within a bound. */
  async close(): Promise<void> {
    await this.#recorder?.close();
  }
}
