/** The header that switches faults on, for the request that carries it and no other. */
export const FAULT_HEADER = 'X-Sandbox-Fault';

interface FaultSpec {
  /**
   * Which decision a fault takes. Of `answer`, `body` and `delivery` a request can name one each, since two
   * would contradict each other; the others combine with everything.
   */
  readonly group: 'timing' | 'answer' | 'body' | 'delivery' | 'extra';
  readonly value?: { readonly unit: string; readonly min: number; readonly max: number };
  readonly does: string;
}

const MILLISECONDS = { unit: 'MS', min: 0, max: 600_000 } as const;

/**
 * Every fault switch. "Executes" means: what the request asked for is done and committed, as without the
 * fault. "Without executing" wins: `503-before,truncate` executes nothing and truncates the 503.
 */
export const FAULTS = {
  delay: {
    group: 'timing',
    value: MILLISECONDS,
    does: 'waits MS before executing; executes even when the client has left by then',
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
    does: 'executes; the JSON answer is padded to BYTES bytes (never cut shorter than it is)',
  },
  binary: { group: 'body', does: 'executes; the body is the 256 bytes 0 to 255 as application/octet-stream' },

  refuse: {
    group: 'delivery',
    does:
      'resets the accepted connection (RST) as soon as the headers are in, before the body is read, without executing. ' +
      'A header cannot have the connect itself refused: for that, aim at a port where nobody listens',
  },
  'reset-before-execute': {
    group: 'delivery',
    does: 'reads the whole request, then resets the connection (RST) without executing',
  },
  hang: { group: 'delivery', does: 'reads the whole request, never executes and never answers' },
  'execute-then-reset': {
    group: 'delivery',
    does: 'executes, then resets the connection (RST) without a byte of an answer',
  },
  'execute-then-hang': { group: 'delivery', does: 'executes and never answers' },
  truncate: {
    group: 'delivery',
    does: 'executes; announces the whole Content-Length, sends half of the body and closes the connection',
  },
  'truncate-chunked': {
    group: 'delivery',
    does: 'executes; sends half of the body chunked and closes without the last chunk',
  },
  drip: {
    group: 'delivery',
    value: MILLISECONDS,
    does: 'executes; sends the body in up to 64 small pieces with MS between them',
  },
  garbage: { group: 'delivery', does: 'executes, then writes bytes that are not HTTP and closes' },

  gzip: {
    group: 'extra',
    does: 'executes; the body is gzip-encoded if the Accept-Encoding of the request allows it',
  },
  'gzip-force': {
    group: 'extra',
    does: 'executes; the body is gzip-encoded whatever the Accept-Encoding says',
  },
  'set-cookie': { group: 'extra', does: 'executes; the answer carries two Set-Cookie headers' },
  'duplicate-header': {
    group: 'extra',
    does: 'executes; the answer carries X-SaNdBoX-Note and x-sAnDbOx-nOtE: one name, odd case, two values',
  },
  'early-hints': { group: 'extra', does: 'sends 103 Early Hints ahead of the answer' },
  once: {
    group: 'extra',
    does: 'limits the other faults to the first request with its idempotency key',
  },
} as const satisfies Record<string, FaultSpec>;

export type FaultName = keyof typeof FAULTS;

/** The faults of one request; the number is the value of those that take one, else 0. */
export type Faults = ReadonlyMap<FaultName, number>;

export const NO_FAULTS: Faults = new Map();

export type ParsedFaults =
  | { readonly ok: true; readonly faults: Faults }
  | { readonly ok: false; readonly message: string };

/** Reads `name, name=value, …`. */
export function parseFaults(header: string): ParsedFaults {
  const faults = new Map<FaultName, number>();
  for (const item of header.split(',').map((part) => part.trim())) {
    const [name = '', ...rest] = item.split('=');
    const value = rest.length === 0 ? undefined : rest.join('=');
    if (!isFaultName(name))
      return mistake(`unknown fault ${JSON.stringify(name)}; GET /_sandbox/faults lists them`);
    const problem = mistakeIn(name, value, faults);
    if (problem !== undefined) return mistake(problem);
    faults.set(name, Number(value ?? 0));
  }
  return { ok: true, faults };
}

/** What GET /_sandbox/faults answers: what each fault does, and how it is written where it takes a value. */
export function describeFaults(): Record<string, string> {
  const specs: [string, FaultSpec][] = Object.entries(FAULTS);
  return Object.fromEntries(
    specs.map(([name, { value, does }]) => [name, value ? `${name}=${value.unit}: ${does}` : does]),
  );
}

function mistake(message: string): ParsedFaults {
  return { ok: false, message };
}

function mistakeIn(name: FaultName, value: string | undefined, taken: Faults): string | undefined {
  const { value: range, group }: FaultSpec = FAULTS[name];
  if (taken.has(name)) return `the fault ${name} is named twice`;
  const rival = [...taken.keys()].find((other) => group !== 'extra' && FAULTS[other].group === group);
  if (rival !== undefined) return `the faults ${rival} and ${name} contradict each other`;
  if (range === undefined) return value === undefined ? undefined : `the fault ${name} takes no value`;
  if (isWithin(range, value)) return undefined;
  return `the fault ${name} is written ${name}=${range.unit}, with a whole number from ${range.min} to ${range.max}`;
}

function isWithin({ min, max }: { min: number; max: number }, value: string | undefined): boolean {
  return /^\d{1,9}$/.test(value ?? '') && Number(value) >= min && Number(value) <= max;
}

function isFaultName(name: string): name is FaultName {
  return Object.hasOwn(FAULTS, name);
}
