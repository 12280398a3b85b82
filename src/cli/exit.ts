/** Ends the command with one message for the operator and no stack trace. */
export class Exit extends Error {
  override readonly name = 'Exit';
  readonly code: number;
  /** @param code as in sysexits.h: 64 usage, 69 unavailable, 78 configuration; 1 otherwise */
  constructor(message: string, code: number) {
    super(message);
    this.code = code;
  }
}

/** A failure to open something, in one line. */
export function explainFailure(error: unknown): { message: string; code: number } {
  if (error instanceof Exit) return error;
  const { code, message, name } = error as NodeJS.ErrnoException & { address?: string; port?: number };
  const { address, port } = error as { address?: string; port?: number };
  if (name === 'WorkerFailed') return { message, code: (error as { exitCode: number }).exitCode };
  if (name === 'ConfigError') return { message, code: 78 };
  if (code === 'EADDRINUSE')
    return { message: `port ${port} on ${address} is in use by another process`, code: 1 };
  if (code === 'EACCES' && port !== undefined)
    return { message: `port ${port} may not be used by this user`, code: 1 };
  if (name === 'StoreUnavailable') return { message, code: 69 };
  return { message, code: 1 };
}
