import type { Guard } from './guard.ts';

const OPERATIONS = 'src/requests/operations.ts';
const TARGET = 'src/requests/target.ts';

/** Which requests a key protects, and what a restricted secret key may call. */
export const requestGuards: readonly Guard[] = [
  [
    'a reload takes the protection of its key from a request that was paid',
    [OPERATIONS, 'identify', 'wasProtected ?', 'false ?'],
    ['e2e/process/reload', 'does not send a payout again whose operation has lost its key'],
  ],
  [
    'a reload lets a lookup release the keys of other requests that had its name',
    ['src/config/reload.ts', 'mergeReload', 'reusedNames(versions', 'reusedNames([]'],
    ['unit/config-reload', 'is refused if a name gets other requests and another lookup'],
  ],
  [
    'a key has no effect on a path that no operation declares',
    [OPERATIONS, 'constructor', "undeclared !== 'pass'", 'false'],
    [
      'e2e/idempotency/undeclared',
      'whatever its path and body > a request with an unknown outcome is not sent again',
    ],
  ],
  [
    'a safe method that selects an operation is not protected',
    [OPERATIONS, '#identify', '|| couldSelect(onPath, members)', ''],
    ['e2e/idempotency/undeclared', 'a GET > that could select an operation is executed once'],
  ],
  [
    'a lookalike of a declared path needs none of its scopes',
    [OPERATIONS, '#resemblingIdentity', 'onPath.map(({ operation }) => operation.name)', '[]'],
    ['e2e/http/authentication', 'needs all scopes of the path that a request resembles'],
  ],
  [
    'a form overrides the method of a restricted secret key',
    [OPERATIONS, 'overrideOf', 'searchesBody ?', 'false ?'],
    ['e2e/http/authentication', 'may not send a form that overrides the method'],
  ],
  [
    'a restricted secret key may call what is unclear',
    ['src/keys/authorise.ts', 'authorise', 'identity.unclear === undefined', 'true'],
    ['e2e/http/authentication', 'a restricted secret key > may not call what is unclear'],
  ],
  [
    'a body that is too large is streamed although its request has a key',
    ['src/idempotency/protect.ts', 'execute', 'return next(taken)', 'return next()'],
    ['e2e/http/bodies', 'a large body > of known length > with a key is answered 413, and nothing is sent'],
  ],
  [
    'a path passes with a character that a backend may turn into a slash',
    [TARGET, 'ambiguityOf', 'LIKE_A_SEPARATOR.test(decoded)', 'LIKE_A_SEPARATOR.test(path)'],
    [
      'unit/operations-target',
      'every character with a slash or a backslash in its compatibility form is refused',
    ],
  ],
  [
    'a length among hidden header lines makes a body the next request',
    ['src/gateway/admission.ts', 'refusalOfFraming', 'rawHeaders.length > 2 * MAX_HEADER_LINES', 'false'],
    ['e2e/http/head', 'header lines > 201 are answered 431, wherever a length is among them'],
  ],
  [
    'Express skips all checks for a target without a path',
    ['src/gateway/app.ts', 'createApp', "!req.url?.startsWith('/')", 'false'],
    ['integration/gateway-app', 'a target without a path, a://, is admitted and checked'],
  ],
];
