import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type BodyForm, fingerprintOf } from '../../src/idempotency/fingerprint.ts';

const of = (body: string | Buffer, form: BodyForm = {}, method = 'POST', target = '/v1/index.php') =>
  fingerprintOf(method, target, Buffer.from(body), form).toString('hex');

const typed = (boundary: string): BodyForm => ({ contentType: `multipart/form-data; boundary=${boundary}` });

interface Part {
  name: string;
  value: string;
}

const multipart = (boundary: string, parts: readonly Part[]) =>
  `${parts
    .map(
      ({ name, value }) =>
        `--${boundary}\r\nContent-Disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`,
    )
    .join('')}--${boundary}--\r\n`;

describe('a request is the same request', () => {
  const parts = [
    { name: 'action', value: 'withdraw' },
    { name: 'amount', value: '10' },
  ];

  test('with a multipart body that has a new boundary, however the type spells it', () => {
    const expected = of(multipart('a', parts), typed('a'));
    const forms: [string, string][] = [
      ['b', 'multipart/form-data; boundary=b'],
      ['----WebKitFormBoundaryAbC', 'multipart/form-data; boundary=----WebKitFormBoundaryAbC'],
      ['with space', 'multipart/form-data; charset=utf-8; boundary="with space"'],
      ['c', 'Multipart/Form-Data;Boundary=c; x=y'],
    ];
    for (const [boundary, contentType] of forms)
      expect(of(multipart(boundary, parts), { contentType }), contentType).toBe(expected);
  });

  test('with a gzip body that has a new time stamp', () => {
    const [first, second] = [gzipSync('{"amount":10}'), gzipSync('{"amount":10}')];
    second.writeUInt32LE(1_700_000_000, 4);
    for (const contentEncoding of ['gzip', 'x-gzip', 'GZIP', 'identity, gzip'])
      expect(of(second, { contentEncoding }), contentEncoding).toBe(of(first, { contentEncoding }));
    // A client that sends the same multipart body again compresses it again.
    const form = { ...typed('a'), contentEncoding: 'gzip' };
    expect(of(second, form)).toBe(of(first, form));
  });
});

describe('a request is another request', () => {
  test('with another method, target or body', () => {
    const bodies = [of('a'), of('a\n'), of(''), of('a', {}, 'PUT'), of('a', {}, 'POST', '/v1/index.php?')];
    expect(new Set(bodies).size).toBe(bodies.length);
    // Method, target and body do not run together.
    expect(of('c', {}, 'a', 'b')).not.toBe(of('', {}, 'a', 'bc'));
    expect(of('', {}, 'ab', 'c')).not.toBe(of('', {}, 'a', 'bc'));
  });

  test('with another boundary in a body whose type does not name it', () => {
    const body = multipart('a', [{ name: 'amount', value: '10' }]);
    for (const contentType of [
      undefined,
      'multipart/form-data',
      'text/plain; boundary=a',
      'x-multipart/y; boundary=a',
    ])
      expect(of(body, { contentType })).not.toBe(
        of(multipart('b', [{ name: 'amount', value: '10' }]), { contentType }),
      );
  });

  test('with a value that holds the other boundary', () => {
    const one = [{ name: 'note', value: 'x' }];
    const two = [{ name: 'note', value: 'x--a' }];
    expect(of(multipart('a', one), typed('a'))).not.toBe(of(multipart('a', two), typed('a')));
    expect(of(multipart('b', two), typed('b'))).not.toBe(of(multipart('a', two), typed('a')));
  });

  test('with anything else changed in a gzip body', () => {
    const body = gzipSync('{"amount":10}');
    const form = { contentEncoding: 'gzip' };
    for (let at = 0; at < body.length; at++) {
      const other = Buffer.from(body);
      other[at] = (other[at] as number) ^ 1;
      if (at >= 4 && at < 8) expect(of(other, form)).toBe(of(body, form));
      else expect(of(other, form), `byte ${at}`).not.toBe(of(body, form));
    }
    const later = Buffer.from(body);
    later[4] = 1;
    expect(of(later)).not.toBe(of(body));
    expect(of(later, { contentEncoding: 'br' })).not.toBe(of(body, { contentEncoding: 'br' }));
    // Too short for a gzip header, or none at all.
    expect(of('\x1f\x8b\x08\x00a', form)).not.toBe(of('\x1f\x8b\x08\x00b', form));
    expect(of('0123456789', form)).not.toBe(of('0123x56789', form));
  });

  test('whatever two different bodies hold, under one boundary', () => {
    const boundary = fc.constantFrom('a', '-', '--', 'ab', 'ä');
    const piece = fc.constantFrom('--a', '-', 'a', 'b', '--ab', '--', '\r\n', 'ä', 'multipart', '\0\0\0\x01');
    const body = fc.array(piece, { maxLength: 12 }).map((pieces) => Buffer.from(pieces.join(''), 'latin1'));
    fc.assert(
      fc.property(boundary, body, body, (name, one, two) => {
        expect(of(one, typed(name)) === of(two, typed(name))).toBe(one.equals(two));
        // Nor does a multipart body have the fingerprint of a plain one.
        expect(of(one, typed(name))).not.toBe(of(two));
      }),
      { numRuns: 2000 },
    );
  });

  test('unless only the name of its boundary differs', () => {
    const name = fc.stringMatching(/^[A-Za-z0-9'()+_,./:=?-]{1,70}$/);
    const value = fc.string().filter((text) => !text.includes('--'));
    fc.assert(
      fc.property(name, name, fc.array(fc.record({ name: value, value })), (one, two, parts) => {
        expect(of(multipart(one, parts), typed(`"${one}"`))).toBe(
          of(multipart(two, parts), typed(`"${two}"`)),
        );
      }),
    );
  });
});
