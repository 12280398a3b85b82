import { readFileSync } from 'node:fs';
import { type Endpoint, OWN_ANSWERS, type OwnAnswer } from './own-answers.ts';

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));

const ref = (kind: string, name: string) => ({ $ref: `#/components/${kind}/${name}` });
const REQUEST_ID = '3f0c9a52-7d0b-4a0e-9d5e-2f1b6f0a9c11';

const REASONS: Record<number, string> = {
  400: 'The request is malformed',
  401: 'There is no valid secret key',
  403: 'Not permitted',
  404: 'There is no such operation',
  408: 'The request did not arrive in time',
  409: 'There is no result to replay',
  413: 'The body is too large',
  417: 'The expectation is not supported',
  422: 'The key belongs to another request',
  429: 'Too many requests',
  431: 'The header fields are too large',
  500: 'The gateway failed',
  502: 'The backend did not answer',
  503: 'The request was not sent',
  504: 'The backend did not answer in time',
  505: 'The HTTP version is not supported',
};

const headers = {
  'X-Request-Id': {
    description: 'The id of this request: tell us this one. Every answer of the gateway has it.',
    required: true,
    schema: { type: 'string', pattern: '^[A-Za-z0-9._-]{8,128}$' },
  },
  'Idempotent-Replayed': {
    description: 'This is the stored answer of the first request with the key. Nothing was executed.',
    schema: { const: 'true' },
  },
  'Idempotent-Original-Request-Id': {
    description: 'The id of the first request with the key.',
    schema: { type: 'string' },
  },
  'Retry-After': {
    description: 'Seconds to wait before the request is sent again.',
    schema: { type: 'string', pattern: '^[0-9]+$' },
  },
  RateLimit: {
    description: 'What is left of the limits, as in draft-ietf-httpapi-ratelimit-headers.',
    schema: { type: 'string' },
  },
  'RateLimit-Policy': {
    description: 'The limits of the merchant, as in draft-ietf-httpapi-ratelimit-headers.',
    schema: { type: 'string' },
  },
  'WWW-Authenticate': {
    description: 'The challenge of RFC 6750.',
    schema: { type: 'string', pattern: '^Bearer ' },
  },
};

const requestId = {
  name: 'X-Request-Id',
  in: 'header',
  description:
    'An id of your own. It is returned, logged and passed on to the backend. Another form is replaced by a new id.',
  schema: { type: 'string', pattern: '^[A-Za-z0-9._-]{8,128}$' },
};

const KEY =
  'One string for one transaction, a UUID for example. The first request with it is executed; every later one gets the stored ' +
  'answer of the first. A key is kept for 24 hours from its first use, and for 30 days while its outcome is unknown. ';

const parameters = {
  RequestId: requestId,
  ServiceIdempotency: {
    name: 'x-service-idempotency',
    in: 'header',
    description: `${KEY}Send this header or \`Idempotency-Key\`, once; if you send both, they must agree.`,
    schema: { type: 'string', pattern: '^[\\x20-\\x7e]{1,255}$' },
    example: REQUEST_ID,
  },
  IdempotencyKey: {
    name: 'Idempotency-Key',
    in: 'header',
    description: `${KEY}As \`x-service-idempotency\`, quoted as in draft-ietf-httpapi-idempotency-key-header, or bare.`,
    schema: { type: 'string', minLength: 1, maxLength: 257 },
    example: `"${REQUEST_ID}"`,
  },
  Prefer: {
    name: 'Prefer',
    in: 'header',
    description:
      '`wait=N` (RFC 7240): how many seconds a retry waits at most while the first request still runs.',
    schema: { type: 'string' },
    example: 'wait=3',
  },
};

const schemas = {
  Problem: {
    type: 'object',
    description: 'An answer of the gateway itself (RFC 9457). It also fits the envelope of the payment API.',
    required: ['success', 'type', 'title', 'status', 'detail', 'error'],
    properties: {
      success: { const: false },
      type: { type: 'string', pattern: '^urn:oncegate:problem:[a-z_]+$' },
      title: { type: 'string' },
      status: { type: 'integer', minimum: 400, maximum: 599 },
      detail: { type: 'string', description: 'For people. It may change.' },
      error: {
        type: 'object',
        required: ['code', 'message', 'request_id'],
        properties: {
          code: { type: 'string', enum: [...new Set(OWN_ANSWERS.map(({ code }) => code))] },
          message: { type: 'string' },
          request_id: { type: 'string' },
        },
        additionalProperties: false,
      },
    },
    additionalProperties: false,
  },
  Balance: {
    type: 'object',
    required: ['success', 'data'],
    properties: {
      success: { const: true },
      data: {
        type: 'object',
        required: ['business_name', 'merchant_code', 'balance', 'currency'],
        properties: {
          business_name: { type: 'string', description: 'Legal name of the merchant, as verified.' },
          merchant_code: { type: 'string', description: 'Public identifier of the merchant.' },
          balance: { type: 'number', description: 'Funds that can be paid out.' },
          currency: { type: 'string' },
        },
      },
    },
  },
  Withdraw: {
    type: 'object',
    description: 'A payout to a bank account.',
    required: ['action', 'amount', 'bank_code', 'account_number'],
    properties: {
      action: { const: 'withdraw' },
      amount: { type: 'number', exclusiveMinimum: 0 },
      bank_code: { type: 'string', pattern: '^[0-9]+$' },
      account_number: { type: 'string', pattern: '^[0-9]+$' },
    },
  },
  Checkout: {
    type: 'object',
    description:
      'A checkout session. The description of the payment API does not show its endpoint or its members: this one is a stand-in.',
    required: ['action', 'amount'],
    properties: { action: { const: 'checkout' }, amount: { type: 'number', exclusiveMinimum: 0 } },
  },
  Accepted: {
    type: 'object',
    description:
      'The description of the payment API does not show this answer. The gateway passes on the bytes that the backend sent; the ' +
      'members here are those of the sandbox.',
    required: ['success'],
    properties: { success: { const: true }, data: { type: 'object' } },
  },
};

/** What the sandbox answers, without its time: readers of YAML 1.1 would take a time for more than a text. */
const balances = {
  balance: {
    value: {
      success: true,
      data: {
        ...{ business_name: 'Alpha Trading Limited', merchant_code: 'M-ALPHA' },
        ...{ balance: 1250.5, currency: 'NGN' },
      },
    },
  },
};
const ID = '5b0c7e0e6f0a4d0e8c553a1f9d7f2b60';
const accepted = {
  withdraw: {
    value: {
      success: true,
      data: {
        ...{ transaction_id: `wd_${ID}`, action: 'withdraw', amount: 12.5, currency: 'NGN' },
        ...{ bank_code: '058', account_number: '0123456789', status: 'accepted' },
      },
    },
  },
  checkout: {
    value: {
      success: true,
      data: {
        ...{ session_id: `cs_${ID}`, action: 'checkout', url: `https://checkout.sandbox.invalid/cs_${ID}` },
        ...{ amount: 12.5, currency: 'NGN', status: 'open' },
      },
    },
  },
};

/** The body of one of the gateway's own answers. */
const bodyOf = ({ code, status, title, detail }: OwnAnswer) => ({
  success: false,
  type: `urn:oncegate:problem:${code}`,
  title,
  status,
  detail,
  error: { code, message: detail, request_id: REQUEST_ID },
});

/** The gateway's own answers of an endpoint under one status. */
function ownResponse(status: number, answers: readonly OwnAnswer[]): object {
  const names = [...new Set(answers.flatMap((answer) => answer.headers))];
  // A header is required if every answer under the status has it.
  const shown = names.map((name) => {
    const isAlways = answers.every((answer) => answer.headers.includes(name));
    return [
      name,
      isAlways ? { ...headers[name as keyof typeof headers], required: true } : ref('headers', name),
    ];
  });
  const codes = answers.map(({ code }) => code);
  return {
    description: `${REASONS[status]}\n\n${answers.map(({ code, description }) => `- \`${code}\`: ${description}`).join('\n')}`,
    headers: { 'X-Request-Id': ref('headers', 'X-Request-Id'), ...Object.fromEntries(shown) },
    content: {
      'application/problem+json': {
        schema: {
          allOf: [
            ref('schemas', 'Problem'),
            {
              properties: {
                status: { const: status },
                error: { properties: { code: { enum: codes } } },
              },
            },
          ],
        },
        examples: Object.fromEntries(answers.map((answer) => [answer.code, { value: bodyOf(answer) }])),
      },
    },
  };
}

function responsesOf(endpoint: Endpoint): Record<string, object> {
  const answers = OWN_ANSWERS.filter(({ endpoints }) => endpoints.includes(endpoint));
  const statuses = [...new Set(answers.map(({ status }) => status))].toSorted((a, b) => a - b);
  return Object.fromEntries(
    statuses.map((status) => [
      `${status}`,
      ownResponse(
        status,
        answers.filter((answer) => answer.status === status),
      ),
    ]),
  );
}

/** Answers of the backend, byte for byte. */
const replayable = {
  'X-Request-Id': ref('headers', 'X-Request-Id'),
  'Idempotent-Replayed': ref('headers', 'Idempotent-Replayed'),
  'Idempotent-Original-Request-Id': ref('headers', 'Idempotent-Original-Request-Id'),
};

const anyAnswer = {
  description:
    'Any other answer of the backend, byte for byte. Under an idempotency key it is stored and replayed, whatever its status, ' +
    'except 401, 403 and 429 (the key is released) and 502 and 504 (the outcome is unknown).',
  headers: replayable,
};

/** The merchants' interface as an OpenAPI 3.1 document. */
export function openapi(): object {
  return {
    openapi: '3.1.0',
    info: {
      title: 'Merchant payments, protected by oncegate',
      version,
      license: { name: 'MIT', identifier: 'MIT' },
      description:
        'A request with an idempotency key is executed at most once, however often it is sent, and every retry gets the result ' +
        'of that execution. If the outcome cannot be known, the gateway says so.\n\n' +
        'After no answer, wait 1, 2 and 4 seconds and send the same request with the same key. Any other path of the backend is ' +
        'passed on; every request with a key is protected there too, unless its method is GET, HEAD, OPTIONS or TRACE.',
    },
    servers: [
      {
        url: 'https://{host}',
        description: 'Your gateway',
        variables: { host: { default: 'payments.example.com' } },
      },
    ],
    security: [{ secretKey: [] }],
    paths: {
      '/v2/get_balance': {
        get: {
          operationId: 'balance',
          summary: 'Read the balance of the wallet',
          description: 'The secret key identifies the merchant.',
          parameters: [ref('parameters', 'RequestId')],
          responses: {
            200: {
              description: 'The balance',
              headers: { 'X-Request-Id': ref('headers', 'X-Request-Id') },
              content: { 'application/json': { schema: ref('schemas', 'Balance'), examples: balances } },
            },
            ...responsesOf('balance'),
            default: { description: 'Any other answer of the backend, byte for byte.' },
          },
        },
      },
      '/v1/index.php': {
        post: {
          operationId: 'payments',
          summary: 'Pay out (`withdraw`), or open a checkout session (`checkout`)',
          description: 'Without an idempotency key a retry is a second transaction.',
          parameters: ['RequestId', 'ServiceIdempotency', 'IdempotencyKey', 'Prefer'].map((name) =>
            ref('parameters', name),
          ),
          requestBody: {
            required: true,
            content: {
              'application/json': {
                schema: { oneOf: [ref('schemas', 'Withdraw'), ref('schemas', 'Checkout')] },
                examples: {
                  withdraw: {
                    value: {
                      action: 'withdraw',
                      amount: 12.5,
                      bank_code: '058',
                      account_number: '0123456789',
                    },
                  },
                  checkout: { value: { action: 'checkout', amount: 12.5 } },
                },
              },
            },
          },
          responses: {
            201: {
              description: 'The transaction was made by this request, or by the first one with its key.',
              headers: replayable,
              content: { 'application/json': { schema: ref('schemas', 'Accepted'), examples: accepted } },
            },
            ...responsesOf('payments'),
            default: anyAnswer,
          },
        },
      },
    },
    components: {
      securitySchemes: {
        secretKey: { type: 'http', scheme: 'bearer', description: 'The secret key of the merchant.' },
      },
      parameters,
      headers,
      schemas,
    },
  };
}
