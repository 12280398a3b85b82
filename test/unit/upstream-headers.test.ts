import { describe, expect, test } from 'vitest';
import { type Forwarding, forwardedHeaders } from '../../src/backend/headers.ts';
import { valuesOf } from '../../src/requests/fields.ts';

const forwarding: Forwarding = {
  requestId: 'request-1',
  merchantCode: 'M-ALPHA',
  client: { address: '192.0.2.7', proxies: [] },
  authorization: (value) => value,
  keyHeaders: ['x-service-idempotency', 'idempotency-key'],
  keepUnderscore: [],
};

const forwarded = (headers: string[], more: Partial<Forwarding> = {}) =>
  forwardedHeaders(headers, { ...forwarding, ...more });

describe('the headers of a forwarded request', () => {
  test('keep their order, letter case and repetitions', () => {
    const headers = ['ACCEPT', 'a', 'accept', 'b', 'X-sErViCe-iDeMpOtEnCy', 'k', 'Prefer', 'wait=1'];
    expect(forwarded(headers).slice(0, headers.length)).toEqual(headers);
  });

  test('exclude hop-by-hop headers, and those that Connection names', () => {
    const headers = [
      ...['Host', 'gateway.test'],
      ...['Connection', 'close, X-Private', 'connection', ' x-other ,Keep-Alive', 'Keep-Alive', 'timeout=5'],
      ...['Proxy-Connection', 'keep-alive', 'Proxy-Authorization', 'Basic eA==', 'Proxy-Authenticate', 'x'],
      ...['TE', 'trailers', 'Trailer', 'X-Sum', 'Transfer-Encoding', 'chunked', 'Upgrade', 'h2c'],
      ...['HTTP2-Settings', 'AAMAAABk', 'X-Private', '1', 'X-Other', '2', 'X-Kept', '3'],
    ];
    const names = forwarded(headers).filter((_, i) => i % 2 === 0);
    expect(names).toEqual([
      'X-Kept',
      ...['X-Forwarded-For', 'X-Forwarded-Proto', 'X-Forwarded-Host', 'X-Real-IP'],
      ...['X-Request-Id', 'X-Merchant-Code'],
    ]);
  });

  test('include those that Connection names, if they are end-to-end or the gateway’s', () => {
    const needed = ['Authorization', 'x-service-idempotency', 'idempotency-key', 'Content-Type', 'Cookie'];
    for (const name of [...needed, 'X-Merchant-Code', 'x-request-id', 'x-forwarded-for'])
      expect(
        valuesOf(forwarded([name, 'v', 'Connection', `close, ${name}`]), name.toLowerCase()),
        name,
      ).toHaveLength(1);
  });

  test('do not include a merchant code or a request id of the merchant', () => {
    const sent = forwarded(['x-Merchant-codE', 'M-BRAVO', 'X-Request-Id', 'forged']);
    expect(valuesOf(sent, 'x-merchant-code')).toEqual(['M-ALPHA']);
    expect(valuesOf(sent, 'x-request-id')).toEqual(['request-1']);
    const ofNobody = forwarded(['X-Merchant-Code', 'M-BRAVO'], { merchantCode: '' });
    expect(valuesOf(ofNobody, 'x-merchant-code')).toEqual([]);
  });

  test('do not include names that CGI would take for another header', () => {
    // Some servers, such as lighttpd, replace everything but letters and digits with underscores.
    for (const sign of "_.~!*+^|%$&'#`")
      for (const name of [`X${sign}Merchant-Code`, `x-merchant${sign}code`, `X${sign}Forwarded-For`, sign])
        expect(forwarded([name, 'M-BRAVO']), name).not.toContain('M-BRAVO');
  });

  test('a header with an underscore is kept if the configuration names it', () => {
    const sent = forwarded(['Api_Version', '2', 'api_other', '3'], { keepUnderscore: ['api_version'] });
    expect(sent.slice(0, 2)).toEqual(['Api_Version', '2']);
    expect(sent).not.toContain('api_other');
  });

  test('Host, framing and Expect are left to the HTTP client', () => {
    const headers = ['Host', 'a', 'Content-Length', '5', 'Expect', '100-continue', 'Transfer-Encoding', 'x'];
    for (const name of ['host', 'content-length', 'expect', 'transfer-encoding']) {
      expect(valuesOf(forwarded(headers), name)).toEqual([]);
    }
  });
});

describe('the headers of proxies in front of the gateway', () => {
  const CLAIMS = [
    ...['Host', 'gateway.test', 'X-Forwarded-For', '198.51.100.1', 'X-Forwarded-Proto', 'https'],
    ...['x-forwarded-host', 'pay.test', 'X-Forwarded-Port', '443', 'X-FORWARDED-PREFIX', '/a'],
    ...['X-Real-IP', '198.51.100.66', 'Forwarded', 'for=198.51.100.1;proto=https'],
  ];
  const trusted = { address: '198.51.100.1', proxies: ['192.0.2.8', '192.0.2.7'], isPeerTrusted: true };

  test('are replaced if the peer is not a trusted proxy', () => {
    expect(forwarded(CLAIMS).slice(0, 6)).toEqual([
      ...['X-Forwarded-For', '192.0.2.7', 'X-Forwarded-Proto', 'http', 'X-Forwarded-Host', 'gateway.test'],
    ]);
    expect(valuesOf(forwarded(CLAIMS), 'x-real-ip')).toEqual(['192.0.2.7']);
    const hidden = forwarded(['Connection', CLAIMS.filter((_, i) => i % 2 === 0).join(), ...CLAIMS]);
    expect(hidden.join('\n')).not.toMatch(/198\.51|https|pay\.test|443/);
  });

  test('are sent even if Connection names them', () => {
    const sent = forwarded(['Connection', 'x-forwarded-proto, x-forwarded-host', ...CLAIMS], {
      client: trusted,
    });
    expect(valuesOf(sent, 'x-forwarded-proto')).toEqual(['https']);
    expect(valuesOf(sent, 'x-forwarded-host')).toEqual(['pay.test']);
    expect(valuesOf(forwarded(['Host', 'a'], { client: trusted }), 'x-forwarded-proto')).toEqual(['http']);
  });
});
