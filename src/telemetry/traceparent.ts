import { randomUUID } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { RequestContext } from '../lib/context.ts';

/** A valid `traceparent` (W3C Trace Context, level 2). */
export interface TraceParent {
  /** 32 hexadecimal digits, not all zero. */
  traceId: string;
  /** 16 hexadecimal digits, not all zero. */
  parentId: string;
  /** Bit 0: sampled. Bit 1: the trace id is random. A later version may define more. */
  flags: number;
}

export const SAMPLED = 1;
const RANDOM_ID = 2;

/** A later version than 00 may have more behind another dash. */
const TRACEPARENT =
  /^(?!ff)(?:00|([0-9a-f]{2}))-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?$/;
/** A longer `tracestate` is dropped. The recommendation asks for 512 characters at least. */
const MAX_STATE_CHARS = 4096;

/**
 * Reads the header of a request, if there is a valid one.
 *
 * @param value as Node joins it: a header that was sent twice has a comma, and is not valid
 */
export function readTraceparent(value: IncomingHttpHeaders[string]): TraceParent | undefined {
  if (typeof value !== 'string') return undefined;
  const [, later, traceId, parentId, flags, more] = TRACEPARENT.exec(value) ?? [];
  if (!traceId || !parentId || !flags || (more !== undefined && later === undefined)) return undefined;
  return { traceId, parentId, flags: Number.parseInt(flags, 16) };
}

/** The request keeps the trace that it came with, if that is valid. */
export function keepTrace(headers: IncomingHttpHeaders, context: RequestContext): void {
  const parent = readTraceparent(headers.traceparent);
  if (!parent) return;
  context.traceId = parent.traceId;
  if ((parent.flags & SAMPLED) === 0) context.isUnsampled = true;
}

/** @param flags those that came. Only the flag for random ids is passed on: others are not known here */
export const formatTraceparent = (traceId: string, spanId: string, isSampled: boolean, flags = 0): string =>
  `00-${traceId}-${spanId}-0${(flags & RANDOM_ID) | (isSampled ? SAMPLED : 0)}`;

/** Whether the `tracestate` of a request with a valid `traceparent` may be passed on as it came. */
export const isStateShort = ({ tracestate }: IncomingHttpHeaders): boolean =>
  tracestate === undefined || String(tracestate).length <= MAX_STATE_CHARS;

/** 32 hexadecimal digits. */
export const newTraceId = (): string => randomUUID().replaceAll('-', '');

/** 16 hexadecimal digits. */
export const newSpanId = (): string => newTraceId().slice(16);
