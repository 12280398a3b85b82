/** The request header that names faults. They apply to that request only. */
export const FAULT_HEADER = 'X-Sandbox-Fault';

interface FaultSpec {
  /**
   * What the fault decides. A request can name one fault of a group, because two would contradict each other. Faults of
   * the group `extra` can be combined with all others.
   */
  readonly group: 'timing' | 'answer' | 'body' | 'delivery' | 'extra';
  readonly value?: { readonly unit: string; readonly min: number; readonly max: number };
  readonly does: string;
}

const MILLISECONDS = { unit: 'MS', min: 0, max: 600_000 } as const;

/**
 * All faults. "Executes" means that the request is executed and committed as it would be without the fault. If one of
 * several faults says "without executing", nothing is executed: `503-before,truncate` truncates the 503.
 */
export const FAULTS = {
  delay: {
    group: 'timing',
    value: MILLISECONDS,
    does: 'waits MS before executing; executes even if the client has disconnected by then',
  },

  '500-before': { group: 'answer', does: 'answers 500 without executing' },
  '503-before': { group: 'answer', does: 'answers 503 with Retry-After: 1, without executing' },
  '429-before': { group: 'answer', does: 'answers 429 with Retry-After: 1, without executing' },
  status: {
    group: 'answer',
    value: { unit: 'NNN', min: 200, max: 599 },
    does: 'answers status NNN without executing',
  },
  '500-after': { group: 'answer', does: 'executes, then answers 500' },
  '503-after': { group: 'answer', does: 'executes, then answers 503 with Retry-After: 1' },

  huge: {
    group: 'body',
    value: { unit: 'BYTES', min: 1, max: 67_108_864 },
    does: 'executes; the JSON answer is padded to BYTES bytes (a longer answer is not cut)',
  },
  binary: { group: 'body', does: 'executes; the body is the 256 bytes 0 to 255 as application/octet-stream' },

  refuse: {
    group: 'delivery',
    does:
      'resets the connection (RST) when the headers have arrived, before the body is read, without executing. ' +
      'To test a refused connection, use a port without a listener',
  },
  'reset-before-execute': {
    group: 'delivery',
    does: 'reads the whole request, then resets the connection (RST) without executing',
  },
  hang: { group: 'delivery', does: 'reads the whole request, never executes and never answers' },
  'execute-then-reset': {
    group: 'delivery',
    does: 'executes, then resets the connection (RST) before the first byte of the answer',
  },
  'execute-then-hang': { group: 'delivery', does: 'executes and never answers' },
  truncate: {
    group: 'delivery',
    does: 'executes; sends the Content-Length of the whole body and half of the body, then closes the connection',
  },
  'truncate-chunked': {
    group: 'delivery',
    does: 'executes; sends half of the body in chunked encoding, then closes the connection without the last chunk',
  },
  'truncate-unframed': {
    group: 'delivery',
    does: 'executes, then closes after half of a response that has no length and no chunks',
  },
  drip: {
    group: 'delivery',
    value: MILLISECONDS,
    does: 'executes; sends the body in up to 64 pieces, and waits MS between two pieces',
  },
  garbage: {
    group: 'delivery',
    does: 'executes, then sends bytes that are not HTTP and closes the connection',
  },

  gzip: {
    group: 'extra',
    does: 'executes; the body is gzip-encoded if the Accept-Encoding of the request allows it',
  },
  'gzip-force': {
    group: 'extra',
    does: 'executes; the body is gzip-encoded, whatever the Accept-Encoding of the request',
  },
  'set-cookie': { group: 'extra', does: 'executes; the answer has two Set-Cookie headers' },
  'duplicate-header': {
    group: 'extra',
    does: 'executes; the answer has one header twice, as X-SaNdBoX-Note and x-sAnDbOx-nOtE, with two values',
  },
  'early-hints': { group: 'extra', does: 'sends 103 Early Hints before the answer' },
  once: {
    group: 'extra',
    does: 'limits the other faults to the first request with its idempotency key',
  },
} as const satisfies Record<string, FaultSpec>;

export type FaultName = keyof typeof FAULTS;

/** The faults of one request, each with its value. The value is 0 for faults that take none. */
export type Faults = ReadonlyMap<FaultName, number>;

export const NO_FAULTS: Faults = new Map();

/** Reads `name, name=value, …`. Returns a text if it is not a list of faults: why it is not. */
export function parseFaults(header: string): Faults | string {
  const faults = new Map<FaultName, number>();
  for (const item of header.split(',').map((part) => part.trim())) {
    const [name = '', ...rest] = item.split('=');
    const value = rest.length === 0 ? undefined : rest.join('=');
    if (!isFaultName(name)) return `unknown fault ${JSON.stringify(name)}; GET /_sandbox/faults lists them`;
    const problem = mistakeIn(name, value, faults);
    if (problem !== undefined) return problem;
    faults.set(name, Number(value ?? 0));
  }
  return faults;
}

/** What each fault does, and how its value is written, as GET /_sandbox/faults shows it. */
export function describeFaults(): Record<string, string> {
  const specs: [string, FaultSpec][] = Object.entries(FAULTS);
  return Object.fromEntries(
    specs.map(([name, { value, does }]) => [name, value ? `${name}=${value.unit}: ${does}` : does]),
  );
}

function mistakeIn(name: FaultName, value: string | undefined, taken: Faults): string | undefined {
  const { value: range, group }: FaultSpec = FAULTS[name];
  if (taken.has(name)) return `the fault ${name} is named twice`;
  const rival = [...taken.keys()].find((other) => group !== 'extra' && FAULTS[other].group === group);
  if (rival !== undefined) return `the faults ${rival} and ${name} contradict each other`;
  if (range === undefined) return value === undefined ? undefined : `the fault ${name} takes no value`;
  if (isWithin(range, value)) return undefined;
  return `the fault ${name} must be written as ${name}=${range.unit}, with a whole number from ${range.min} to ${range.max}`;
}

function isWithin({ min, max }: { min: number; max: number }, value: string | undefined): boolean {
  return /^\d{1,9}$/.test(value ?? '') && Number(value) >= min && Number(value) <= max;
}

function isFaultName(name: string): name is FaultName {
  return Object.hasOwn(FAULTS, name);
}
