import type { IncomingMessage } from 'node:http';
import { test } from 'vitest';
import { fingerprintOf } from '../../src/idempotency/fingerprint.ts';
import { hasDuplicateMember } from '../../src/requests/duplicate-member.ts';
import { membersOf, overrideInBody, overridesMethod, selects } from '../../src/requests/members.ts';
import { combined, expectLinear, repeated, type Sample } from './linear-time.ts';

/** Lengths in characters. A body may have a million by default; a quarter of it would take minutes in quadratic time. */
const BODIES = [65_536, 262_144];
/** Lengths of a query or a header. */
const HEADS = [16_384, 65_536];

/** One object with as many members as there is room for. */
function membersNamed(name: string, nameOf: (i: number) => string | number): Sample {
  const of = (chars: number): string => {
    const members: string[] = [];
    for (let [i, length] = [0, 2]; length < chars; i++) {
      const member = `"${nameOf(i)}":1`;
      members.push(member);
      length += member.length + 1;
    }
    return `{${members.join(',')}}`;
  };
  return { name, of };
}

const deepObjects: Sample = {
  name: 'objects in objects',
  of: (chars) => `${'{"a":'.repeat(chars / 6)}1${'}'.repeat(chars / 6)}`,
};

/** Valid JSON, except for brackets that are not closed. */
const json = [
  repeated('{"a":"', 'x', '"}'),
  repeated('{"a":"', '\\"', '"}'),
  repeated('{"a":"', '\\\\\\"', '"}'),
  repeated('{"a":"', '}{:', '"}'),
  repeated('[""', ',""', ']'),
  repeated('[{}', ',{"a":1}', ']'),
  repeated('[{}', ',{"\\n":1}', ']'),
  repeated('{"', 'a', '":1}'),
  repeated('{"', '\\u0061', '":1}'),
  repeated('', '['),
  deepObjects,
  membersNamed('short names', (i) => i.toString(36)),
  membersNamed('names with an escape', (i) => `\\n${i.toString(36)}`),
  membersNamed('numbers as names', (i) => i),
  // V8 hashes a short number by its value, so a table with a power of two of places puts these into few of them.
  membersNamed('multiples of 65536 as names', (i) => i * 65_536),
];

const harmlessJson = membersNamed('ordinary names', (i) => `a_member_with_an_ordinary_name_${i}`);

test('hasDuplicateMember reads a body in linear time', () => {
  expectLinear(hasDuplicateMember, { harmless: harmlessJson, worst: json, sizes: BODIES });
});

/** Whether the members select an operation, as for a request with these headers. */
const select = (rawHeaders: string[], query: string, body: Buffer) => {
  const members = membersOf({ rawHeaders } as IncomingMessage, query, body);
  return members.kind === 'members' && selects(members.members, [['action', 'withdraw']]);
};
const NOTHING = Buffer.alloc(0);

test('members of a JSON body are found in linear time', () => {
  const marks = (start: string, end: string): Sample => ({
    name: `unsorted marks between ${start} and ${end}`,
    of: (chars) => `${start}${'\u0301'.repeat(chars / 2)}${'\u0323'.repeat(chars / 2)}${end}`,
  });
  const worst = [
    ...json,
    marks('{"', '":1}'),
    marks('{"action":"', '"}'),
    repeated('{"action":"', ' \\u0000', '"}'),
  ];
  expectLinear((body: Buffer) => select(['Content-Type', 'application/json'], '', body), {
    prepare: (text) => Buffer.from(text),
    ...{ harmless: harmlessJson, worst, sizes: BODIES },
  });
});

const form = {
  harmless: repeated('action=withdraw&note=', 'a%20b'),
  worst: combined(
    ['', 'a='],
    ['&', ';', '=', '&;', '[', '[]', '%', '%5b', '%u0041', '+', '%00', '\0', '.', ' ', '&_method', '\xe9'],
    ['', '\0x', '&action=withdraw'],
  ),
};

test('members of a form body are found in linear time', () => {
  const type = 'application/x-www-form-urlencoded';
  const req = { rawHeaders: ['Content-Type', type] } as IncomingMessage;
  expectLinear((body: Buffer) => [select(req.rawHeaders, '', body), overrideInBody(req, body)], {
    prepare: (text) => Buffer.from(text),
    ...{ ...form, sizes: [16_384, 65_536] },
  });
});

test('members of a query are found in linear time', () => {
  expectLinear(
    (query) => [
      select([], query, NOTHING),
      overridesMethod({ rawHeaders: [] as string[] } as IncomingMessage, query),
    ],
    { ...form, sizes: HEADS },
  );
});

test('a content type is read in linear time', () => {
  const worst = combined(
    ['', 'multipart/form-data', 'multipart/form-data;', 'application/', 'text/plain;charset='],
    [';', ' ', '; ', ';boundary=', ';boundary="', 'a', '-', '/', '+json', '.', '="', ';charset=utf-8', '\t'],
    ['', '"', 'boundary=x', '/json'],
  );
  const read = (type: string) => [
    select(['Content-Type', type], '', Buffer.from('a')),
    fingerprintOf('POST', '/', NOTHING, { contentType: type, contentEncoding: type }),
  ];
  expectLinear(read, { harmless: repeated('text/plain;', 'a=b;'), worst, sizes: HEADS });
});

test.each(['x', '-', 'a'.repeat(200), `${'-a'.repeat(99)}b`, '----WebKitFormBoundaryAbCdEf'])(
  'a multipart body with the boundary %s has its fingerprint in linear time',
  (boundary) => {
    const worst = combined(
      ['', `--${boundary}`],
      ['-', 'a', '-a', `--${boundary}`, `--${boundary}\r\n`, `--${boundary.slice(0, -1)}`, boundary, 'b-a'],
      ['', 'x'],
    );
    expectLinear(
      (body: Buffer) =>
        fingerprintOf('POST', '/', body, { contentType: `multipart/form-data; boundary="${boundary}"` }),
      {
        prepare: (text) => Buffer.from(text),
        harmless: repeated(
          `--${boundary}`,
          `\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--${boundary}`,
        ),
        ...{ worst, sizes: BODIES },
      },
    );
  },
);
