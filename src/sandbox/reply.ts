/** A whole answer before it goes out: the faults below it decide how much of it arrives, and how. */
export interface Reply {
  readonly status: number;
  /** Names and values in turn, as Node's writeHead takes them: repeated names and odd case survive. */
  readonly headers: readonly string[];
  readonly body: Buffer;
}

/**
 * What a route makes of a request: it reads the body and hands back the execution, to be called or not. The
 * gap between the two is where a backend can be slow, break down or go away before it has executed.
 */
export type Execution = () => Reply;

const STATUS_OF = {
  invalid_fault: 400,
  invalid_json: 400,
  unauthorized: 401,
  insufficient_funds: 402,
  not_found: 404,
  method_not_allowed: 405,
  body_too_large: 413,
  validation_failed: 422,
  unknown_action: 422,
  internal_error: 500,
} as const;

export type ErrorCode = keyof typeof STATUS_OF;

export function jsonReply(status: number, body: unknown, headers: readonly string[] = []): Reply {
  return {
    status,
    headers: ['Content-Type', 'application/json; charset=utf-8', ...headers],
    body: Buffer.from(JSON.stringify(body)),
  };
}

export function errorReply(code: ErrorCode, message: string, headers: readonly string[] = []): Reply {
  return errorEnvelope(STATUS_OF[code], code, message, headers);
}

export function errorEnvelope(
  status: number,
  code: string,
  message: string,
  headers: readonly string[] = [],
): Reply {
  return jsonReply(status, { success: false, message, error: { code, message } }, headers);
}
