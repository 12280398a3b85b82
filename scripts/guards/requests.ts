import type { Guard } from '../guards.ts';

const OPERATIONS = 'src/operations/operations.ts';
const MEMBERS = 'src/operations/members.ts';
const RESTRICTED = 'test/e2e/http/restricted-keys.test.ts';
const UNCLEAR = 'a restricted secret key > may not call what is unclear';

/** Which requests are protected, and what a restricted secret key may call. */
export const requestGuards: readonly Guard[] = [
  {
    file: OPERATIONS,
    without: 'a key has no effect on a path that no operation declares',
    text: "isProtected: undeclared !== 'pass', keyRequired: false",
    replacement: 'isProtected: false, keyRequired: false',
    test: 'test/e2e/idempotency/undeclared.test.ts',
    named:
      'whatever its path and body > a form on an undeclared path: a request with an unknown outcome is not sent again',
  },
  {
    file: OPERATIONS,
    without: 'a safe method that selects an operation is not protected',
    text: 'const isProtected = !isSafe(req.method) || couldSelect(onPath, members);',
    replacement: 'const isProtected = !isSafe(req.method);',
    test: 'test/e2e/idempotency/safe-methods.test.ts',
    named: 'a GET that could select an operation by its query is executed once',
  },
  {
    file: OPERATIONS,
    without: 'an unclear request needs no key where one is required',
    text: 'const unclear = { ...other, keyRequired: keyRequired && isProtected };',
    replacement: 'const unclear = { ...other, keyRequired: false };',
    test: 'test/e2e/idempotency/answers-before-sending.test.ts',
    named: 'a body that is no JSON, without a key: idempotency_key_required',
  },
  {
    file: OPERATIONS,
    without: 'a lookalike of a declared path needs none of its scopes',
    text: 'scopes: onPath.map(({ operation }) => operation.name),',
    replacement: '',
    test: RESTRICTED,
    named: 'a restricted secret key > needs all scopes of the path that /V1/INDEX.PHP resembles',
  },
  {
    file: OPERATIONS,
    without: 'a header overrides the method or the path unnoticed',
    text: 'const isOverridden = OVERRIDES.some((name) => req.headers[name] !== undefined);',
    replacement: 'const isOverridden = false;',
    test: RESTRICTED,
    named: `${UNCLEAR}: X-Original-URL on an undeclared path`,
  },
  {
    file: OPERATIONS,
    without: 'a member of the query overrides the method unnoticed',
    text: 'if (isSafe(req.method) || !overridesMethod(query)) return',
    replacement: 'if (isSafe(req.method) || query.length >= 0) return',
    test: 'test/unit/operations-unclear.test.ts',
    named: 'a method in the query makes it unclear where the method decides',
  },
  {
    file: 'src/auth/authorise.ts',
    without: 'a restricted secret key may call what is unclear',
    text: 'if (identity.unclear !== undefined)',
    replacement: 'if (identity.unclear === realm)',
    test: RESTRICTED,
    named: `${UNCLEAR}: a gzip body`,
  },
  {
    file: MEMBERS,
    without: 'a selection in both the query and the body counts as clear',
    text: "found.length > 1 || only.isDisputed || only.name !== name || typeof only.value !== 'string'",
    replacement: "only.isDisputed || only.name !== name || typeof only.value !== 'string'",
    test: RESTRICTED,
    named: `${UNCLEAR}: the same selection in both`,
  },
  {
    file: MEMBERS,
    without: 'a member that only some parsers find counts as clear',
    text: 'const isDisputed = others.length > 0 || ASP_ESCAPE.test(whole);',
    replacement: 'const isDisputed = false;',
    test: RESTRICTED,
    named: `${UNCLEAR}: the form %u0061ction=withdraw`,
  },
  {
    file: MEMBERS,
    without: 'a form that looks like JSON counts as clear',
    text: "if (LOOKS_LIKE_JSON.test(text)) return unclear('its body is sent as a form and looks like JSON');",
    replacement: '',
    test: RESTRICTED,
    named: `${UNCLEAR}: JSON with the content type of a form`,
  },
  {
    file: MEMBERS,
    without: 'JSON without a content type is never read as a form',
    text: "if (inJson.kind === 'unclear' || !body.includes('=')) return inJson;",
    replacement: "if (inJson.kind !== 'unclear' || body.includes('')) return inJson;",
    test: RESTRICTED,
    named: `${UNCLEAR}: JSON without a content type, and with a form in it`,
  },
  {
    file: 'src/idempotency/http/middleware.ts',
    without: 'a body that is too large is streamed although its request has a key',
    text: "if (taken !== 'read') return next(taken);",
    replacement: "if (taken !== 'read') return next();",
    test: 'test/e2e/http/large-bodies.test.ts',
    named: 'a large body of known length with a key is answered 413, and nothing is sent',
  },
  {
    file: 'src/operations/body.ts',
    without: 'a chunked body that is too large is read a second time, and never ends',
    text: 'if (context.isTooLarge || declaredTooLarge',
    replacement: 'if (declaredTooLarge',
    test: 'test/e2e/http/bodies.test.ts',
    named: 'a body over the limit, with a key > is answered 413 as soon as its chunks exceed the limit',
  },
  {
    file: 'src/idempotency/fingerprint.ts',
    without: 'a multipart body with a new boundary is another request',
    text: 'const boundary = isCompressed ? undefined : boundaryOf(contentType);',
    replacement: 'const boundary = isCompressed ? boundaryOf(contentType) : undefined;',
    test: 'test/unit/fingerprint.test.ts',
    named: 'a request is the same request > with a multipart body that has a new boundary',
  },
  {
    file: 'src/gateway/app.ts',
    without: 'Express skips all checks for a target without a path',
    text: "if (!req.url?.startsWith('/')) refuseTarget(path, req, res, end);",
    replacement: 'if (req.url === undefined) refuseTarget(path, req, res, end);',
    test: 'test/integration/gateway-app.test.ts',
    named: 'a target without a path, a://, is admitted and checked',
  },
];
