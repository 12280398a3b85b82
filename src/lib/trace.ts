import type { Exchange } from './exchange.ts';

/** The trace context (W3C Trace Context) of a request to the backend, in place of the one that came. */
export interface TraceContext {
  /** The value of the header `traceparent`. */
  traceparent: string;
  /** The `tracestate` that came belongs to this trace, so it is passed on. Otherwise it is dropped. */
  keepState: boolean;
  /** The trace is sampled, by the gateway or at its request by the backend. */
  isSampled: boolean;
}

/** What the gateway does for a request, as a span of its trace names it. */
export type StepName =
  /** Finding the merchant of the secret key. */
  | 'authenticate'
  /** Waiting for the result of another request with the same key. */
  | 'wait'
  /** Waiting for a slot. */
  | 'queue'
  /** Waiting for a lookup of a key in doubt. */
  | 'lookup'
  /** Commands to the store. */
  | 'peek'
  | 'start'
  | 'restart'
  | 'complete'
  | 'release'
  | 'mark_in_doubt';

/** A step that has begun. */
export interface Step {
  /**
   * @param result how it ended, such as the answer of the store: a word from a fixed set
   * @param error a word from a fixed set. Default: the step did not fail
   */
  end(result: string, error?: string): void;
}

/** A request to the backend that has begun. */
export interface SentStep {
  /** @param error why there is no complete response: a word from a fixed set */
  end(status: number | undefined, error?: string): void;
}

/** A request of the gateway itself to the backend, in a trace of its own. */
export interface OwnRequest extends SentStep {
  /** The header's value for the backend. */
  traceparent: string;
}

/** Ends the step by what became of its request. An oversize response is streamed later. */
export function endSent(step: SentStep, exchange: Exchange): void {
  if (exchange.kind === 'complete') step.end(exchange.response.status);
  else if (exchange.kind === 'oversize') step.end(exchange.status);
  else if (exchange.kind === 'not_sent') step.end(undefined, 'not_sent');
  else step.end(undefined, exchange.timedOut ? 'timeout' : 'connection');
}

/** How a request ended, for its own span. */
export interface RequestEnd {
  operation: string;
  outcome: string;
  /** The status of the response, if one was sent. */
  status: number | undefined;
  merchantGone: boolean;
}

/** The spans of one sampled request. A request that is not sampled has none, and costs nothing. */
export interface Spans {
  begin(step: StepName): Step;
  /** Begins sending to the backend. From now on the request's trace context names this step's span. */
  send(): SentStep;
  /** Ends the request's own span, and sending to the backend if that has not ended. */
  end(ended: RequestEnd): void;
}
