import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { valuesOf } from '../../src/kernel/fields.ts';
import { endToEndHeaders, type Forwarding, forwardedHeaders } from '../../src/upstream/headers.ts';

const forwarding: Forwarding = {
  requestId: 'request-1',
  merchantCode: 'M-ALPHA',
  clientAddress: '192.0.2.7',
  authorization: (value) => value,
  keepUnderscore: [],
};

const forwarded = (headers: string[], more: Partial<Forwarding> = {}) =>
  forwardedHeaders(headers, { ...forwarding, ...more });

/** The variable in which CGI, FastCGI and their like hand a header to a program. */
const cgiName = (name: string): string => name.toUpperCase().replace(/[^A-Z0-9]/g, '_');

describe('a request’s headers on their way to the backend', () => {
  test('keep their order, their case and their repetitions', () => {
    const headers = [
      'User-Agent',
      'x',
      'ACCEPT',
      'a',
      'accept',
      'b',
      'X-sErViCe-iDeMpOtEnCy',
      'k',
      'Prefer',
      'wait=1',
    ];
    expect(forwarded(headers).slice(0, headers.length)).toEqual(headers);
  });

  test('get our own', () => {
    expect(forwarded(['Host', 'gateway.test'])).toEqual([
      ...['X-Forwarded-For', '192.0.2.7', 'X-Forwarded-Proto', 'http', 'X-Forwarded-Host', 'gateway.test'],
      ...['X-Request-Id', 'request-1', 'X-Merchant-Code', 'M-ALPHA'],
    ]);
  });

  test('lose those of the connection, and those that it nominates', () => {
    const headers = [
      ...['Host', 'gateway.test'],
      ...['Connection', 'close, X-Private', 'connection', ' x-other ,Keep-Alive', 'Keep-Alive', 'timeout=5'],
      ...[
        'Proxy-Connection',
        'keep-alive',
        'Proxy-Authorization',
        'Basic eA==',
        'Proxy-Authenticate',
        'Basic',
      ],
      ...['TE', 'trailers', 'Trailer', 'X-Sum', 'Transfer-Encoding', 'chunked', 'Upgrade', 'h2c'],
      ...['HTTP2-Settings', 'AAMAAABk', 'X-Private', '1', 'X-Other', '2', 'X-Kept', '3'],
    ];
    const names = forwarded(headers).filter((_, i) => i % 2 === 0);
    expect(names).toEqual([
      'X-Kept',
      ...['X-Forwarded-For', 'X-Forwarded-Proto', 'X-Forwarded-Host', 'X-Request-Id', 'X-Merchant-Code'],
    ]);
  });

  test.each([
    'authorization',
    'Authorization',
    'x-service-idempotency',
    'idempotency-key',
    'Content-Type',
    'Cookie',
  ])('Connection: %s does not take it away', (name) => {
    expect(valuesOf(forwarded([name, 'v', 'Connection', `close, ${name}`]), name.toLowerCase())).toEqual([
      'v',
    ]);
  });

  test.each(['x-merchant-code', 'X-Merchant-Code', 'x-request-id', 'x-forwarded-for'])(
    'Connection: %s does not take ours away',
    (name) => {
      const sent = forwarded(['Connection', name, name, 'forged']);
      expect(valuesOf(sent, name.toLowerCase())).toHaveLength(1);
      expect(valuesOf(sent, 'connection')).toEqual([]);
    },
  );

  test.each(['X-Merchant-Code', 'x-merchant-code', 'X-MERCHANT-CODE', 'x-Merchant-codE'])(
    '%s from outside is not taken',
    (name) => {
      const sent = forwarded([name, 'M-BRAVO', 'X-Request-Id', 'forged']);
      expect(valuesOf(sent, 'x-merchant-code')).toEqual(['M-ALPHA']);
      expect(valuesOf(sent, 'x-request-id')).toEqual(['request-1']);
    },
  );

  test.each([
    ...[
      'X_Merchant_Code',
      'x_merchant_code',
      'X-Merchant_Code',
      'X_Merchant-Code',
      'X_Forwarded_For',
      '_',
      'a_b',
    ],
    // Some servers, lighttpd for one, make an underscore of everything that is no letter and no digit.
    ...['X.Merchant.Code', 'X-Merchant.Code', 'x~merchant~code', "X!Merchant'Code", 'X+Merchant|Code'],
  ])('%s is dropped: CGI would take it for another', (name) => {
    const sent = forwarded([name, 'M-BRAVO']).join('\n');
    expect(sent).not.toContain('M-BRAVO');
  });

  test('nothing from outside reaches a CGI program as the merchant code', () => {
    const letter = fc.constantFrom('-', '_', '.', '~', '!', '*', '+', '^', '|', '%', '$', '&', "'", '#', '`');
    const spelling = fc
      .tuple(letter, letter, fc.boolean())
      .map(([a, b, upper]) => (upper ? `X${a}MERCHANT${b}CODE` : `x${a}merchant${b}code`));
    fc.assert(
      fc.property(spelling, (name) => {
        const sent = forwarded([name, 'M-BRAVO']);
        const codes = sent.filter((_, i) => i % 2 && cgiName(sent[i - 1] as string) === 'X_MERCHANT_CODE');
        expect(codes).toEqual(['M-ALPHA']);
      }),
    );
  });

  test('a header with an underscore that is named in the configuration is kept', () => {
    const sent = forwarded(['Api_Version', '2', 'api_other', '3'], { keepUnderscore: ['api_version'] });
    expect(sent.slice(0, 2)).toEqual(['Api_Version', '2']);
    expect(sent).not.toContain('api_other');
  });

  test('Host, framing and Expect are the sender’s business', () => {
    const headers = [
      'Host',
      'gateway.test',
      'Content-Length',
      '5',
      'Expect',
      '100-continue',
      'Transfer-Encoding',
      'x',
    ];
    for (const name of ['host', 'content-length', 'expect', 'transfer-encoding']) {
      expect(valuesOf(forwarded(headers), name)).toEqual([]);
    }
  });

  test.each([
    ['replaced', () => 'Bearer ours', ['Bearer ours']],
    ['left out', () => undefined, []],
  ])('Authorization can be %s', (_how, authorization, expected) => {
    const sent = forwarded(['AUTHORIZATION', 'Bearer theirs'], { authorization });
    expect(valuesOf(sent, 'authorization')).toEqual(expected);
  });
});

describe('who came before us', () => {
  test('X-Forwarded-For is continued, over all its lines, as one', () => {
    const headers = ['X-Forwarded-For', '198.51.100.1, 198.51.100.2', 'x-forwarded-for', '198.51.100.3'];
    expect(valuesOf(forwarded(headers), 'x-forwarded-for')).toEqual([
      '198.51.100.1, 198.51.100.2, 198.51.100.3, 192.0.2.7',
    ]);
  });

  test('what a balancer says of protocol and host is kept, and stands once', () => {
    const headers = ['Host', 'inside', 'X-Forwarded-Proto', 'https', 'X-FORWARDED-HOST', 'pay.test'];
    const sent = forwarded(headers);
    expect(valuesOf(sent, 'x-forwarded-proto')).toEqual(['https']);
    expect(valuesOf(sent, 'x-forwarded-host')).toEqual(['pay.test']);
  });

  test('and cannot be made to vanish by the connection', () => {
    const sent = forwarded([
      ...['Host', 'gateway.test'],
      'Connection',
      'x-forwarded-proto, x-forwarded-host',
      'X-Forwarded-Proto',
      'https',
    ]);
    expect(valuesOf(sent, 'x-forwarded-proto')).toHaveLength(1);
    expect(valuesOf(sent, 'x-forwarded-host')).toHaveLength(1);
  });
});

describe('a response’s headers', () => {
  test('lose those of the connection, and stay as they are otherwise', () => {
    const headers = [
      ...['Connection', 'X-Hop', 'X-Hop', '1', 'Keep-Alive', 'timeout=5', 'Transfer-Encoding', 'chunked'],
      ...['Proxy-Authenticate', 'Basic', 'Trailer', 'X-Sum', 'Upgrade', 'h2c'],
      ...['Set-Cookie', 'a=1', 'sEt-cOoKiE', 'b=2', 'X_Under_Score', 'kept', 'Content-Length', '3'],
    ];
    expect(endToEndHeaders(headers)).toEqual([
      ...['Set-Cookie', 'a=1', 'sEt-cOoKiE', 'b=2', 'X_Under_Score', 'kept', 'Content-Length', '3'],
    ]);
  });
});

test('what is stored is asked for without an encoding', () => {
  const sent = forwarded(['Accept-Encoding', 'gzip', 'A', '1', 'accept-encoding', 'br'], { unencoded: true });
  expect(sent.slice(0, 2)).toEqual(['A', '1']);
  expect(valuesOf(sent, 'accept-encoding')).toEqual(['identity']);
});
