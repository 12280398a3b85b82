import { describe, expect, test } from 'vitest';
import { type Members, selects, type Where } from '../../src/requests/members.ts';
import { FORM, membersIn, membersOfJson, readJson, unclear } from '../support/members.ts';

describe('a body is unclear', () => {
  const JSON_BODY = '{"action":"withdraw"}';
  const FORM_BODY = 'action=withdraw';

  test('if it is too large to be read', () => {
    expect(membersIn(undefined)).toEqual(unclear('its body is too large to be read'));
  });

  test.each(['gzip', 'br', 'deflate', 'x-gzip', 'GZIP', 'identity, gzip', '', 'unknown'])(
    'with the content coding %j',
    (coding) => {
      for (const [type, body] of [
        ['application/json', JSON_BODY],
        [FORM, FORM_BODY],
      ] as const)
        expect(membersIn(body, { 'Content-Type': type, 'Content-Encoding': coding })).toEqual(
          unclear('its body has a content coding'),
        );
    },
  );

  test('but not with the coding identity, or if it is empty', () => {
    const fields = { 'Content-Type': FORM, 'Content-Encoding': ' Identity ' };
    expect(membersIn(FORM_BODY, fields)).toHaveProperty('members.length', 1);
    expect(membersIn('', { 'Content-Type': 'a/b; charset=utf-16', 'Content-Encoding': 'gzip' })).toEqual({
      ...{ kind: 'members', members: [] },
    });
  });

  test.each([
    'UTF-16LE',
    'utf-7',
    '',
    "'utf-8'",
    'utf-8, utf-7',
    'utf-8; charset=utf-16',
    '"utf-16"',
    'utf-8/',
  ])('with the charset %j', (charset) => {
    for (const type of ['application/json', FORM])
      for (const parameter of [`charset=${charset}`, `a=b;  CHARSET = ${charset}`])
        expect(membersIn(JSON_BODY, { 'Content-Type': `${type}; ${parameter}` })).toEqual(
          unclear('its body has an unusual charset'),
        );
  });

  test.each(['UTF8', '"utf-8"', ' us-ascii ', 'ISO-8859-1', 'utf-8; version=1'])(
    'but not with the charset %j',
    (charset) => {
      expect(membersIn(JSON_BODY, { 'Content-Type': `application/json; charset=${charset}` })).toEqual(
        membersOfJson(JSON_BODY),
      );
      expect(membersIn(FORM_BODY, { 'Content-Type': `${FORM};charset=${charset}` })).toHaveProperty(
        ...['members.0.name', 'action'],
      );
    },
  );

  test.each([
    ...['multipart/form-data; boundary=x', 'application/xml', 'text/xml', 'application/octet-stream'],
    ...['application/json, text/plain', 'json', 'application/jsonx', '*/*', `${FORM}2`],
  ])('with the content type %s', (type) => {
    for (const body of [JSON_BODY, FORM_BODY])
      expect(membersIn(body, { 'Content-Type': type })).toEqual(
        unclear('its body is neither JSON nor a form'),
      );
  });

  test.each([
    ...['application/json', 'Application/JSON', 'text/json', 'text/plain', 'application/vnd.api+json'],
    ...['application/problem+json ;a=b', ''],
  ])('but not with the content type %j', (type) => {
    expect(membersIn(JSON_BODY, { 'Content-Type': type })).toEqual(membersOfJson(JSON_BODY));
    expect(membersIn(JSON_BODY)).toEqual(membersOfJson(JSON_BODY));
  });

  test.each([{}, { 'Content-Type': 'text/plain' }])('if it can also be read as a form: %j', (fields) => {
    const read = membersIn('{"action":"checkout","note":"&action=withdraw&"}', fields);
    if (read.kind === 'unclear') throw new Error(read.reason);
    expect(selects(read.members, [['action', 'checkout']])).toBe('unclear');
    expect(selects(read.members, [['action', 'withdraw']])).toBe('unclear');
    expect(selects(read.members, [['note', 'x']])).toBe('no');
  });

  test('with two content types', () => {
    expect(membersIn(JSON_BODY, { 'Content-Type': ['application/json', 'application/json'] })).toEqual(
      unclear('it has two content types'),
    );
  });

  test.each(['_method', '_METHOD', ' _method', '_method\0x', '_method ', 'X-HTTP-Method-Override'])(
    'with the member %j, which overrides the method',
    (name) => {
      const encoded = encodeURIComponent(name);
      const expected = unclear('a member may override the method');
      expect(readJson(JSON.stringify({ [name]: 'DELETE' }))).toEqual(expected);
      expect(membersIn(`${encoded}=DELETE`, { 'Content-Type': FORM })).toEqual(expected);
      expect(membersIn('', {}, `a=1&${encoded}=PUT`)).toEqual(expected);
    },
  );
});

describe('members select an operation', () => {
  const WHERE: Where = [['action', 'withdraw']];
  const inQuery = (query: string, where = WHERE) => {
    const read = membersIn('', {}, query);
    if (read.kind === 'unclear') throw new Error(read.reason);
    return selects(read.members, where);
  };

  const QUERIES: Record<string, string[]> = {
    yes: ['action=withdraw', 'x=1&%61ction=withdraw&y'],
    no: ['action=checkout', 'x=withdraw', 'action', 'actions=withdraw', 'inaction=withdraw', ''],
    'unclear: a name that PHP converts': [
      '+action=x',
      'action[0]=x',
      'action%5B%5D=x',
      'action%00x=x',
      'action[=x',
    ],
    'unclear: twice, in any spelling': ['action=x&action=x', 'action=x&Action=x', 'action=x&action[]=x'],
    'unclear: split at semicolons': ['x=1;action=withdraw', 'action=x;action=withdraw', ';action=withdraw;'],
    'unclear: without letter case, spaces or NULs': [
      'ACTION=x',
      'action=Withdraw',
      'action=withdraw%00x',
      '%09action=x',
    ],
    'unclear: %u, which ASP decodes': ['%u0061ction=withdraw', 'action=%U0077ithdraw'],
  };

  test('by the query', () => {
    for (const [kind, queries] of Object.entries(QUERIES))
      for (const query of queries) expect(inQuery(query), query).toBe(kind.split(':', 1)[0]);
  });

  test.each(['a.b=x', 'a+b=x', 'a%20b=x', '+a.b=x', 'a.b[]=x', 'A.B=x', 'a[b=x', '+a[b%00]=x'])(
    '%s may be a_b in PHP',
    (query) => {
      expect(inQuery(query, [['a_b', 'x']])).toBe('unclear');
      // The configuration can declare a name with a dot.
      expect(inQuery('a.b=x', [['a.b', 'x']])).toBe('yes');
      expect(inQuery('a_b=x', [['a.b', 'x']])).toBe('unclear');
    },
  );

  test.each(['\uff41ction', 'act\u0131on', 'ac\u0074ion\u0000', '\u24d0ction'])('%j in JSON', (name) => {
    const read = readJson(JSON.stringify({ [name]: 'withdraw' })) as Members & { kind: 'members' };
    const dotless = name.includes('\u0131');
    expect(selects(read.members, WHERE)).toBe(dotless ? 'no' : 'unclear');
  });
});
