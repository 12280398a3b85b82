import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Members } from '../../src/requests/members.ts';
import { FORM, membersIn, unclear } from '../support/members.ts';

describe('a form', () => {
  const readForm = (text: string) => membersIn(text, { 'Content-Type': FORM });
  const pairs = (read: Members) =>
    read.kind === 'members' ? read.members.map(({ name, value }) => [name, value]) : read;
  const textOf = (read: Members) =>
    read.kind === 'members' ? read.members.map(({ name, value }) => `${name}: ${value}`).join(', ') : read;

  test.each([
    ['a=1&b=2', 'a: 1, b: 2'],
    ['%61+b=%31+c%2b', 'a b: 1 c+'],
    ['a=1=2&=3&b&&', 'a: 1=2, : 3, b: , : , : '],
    ['a=%zz%4&b=%C3%A4', 'a: %zz%4, b: \u00c3\u00a4'],
  ])('%s', (text, expected) => {
    expect(textOf(readForm(text))).toBe(expected);
    expect(textOf(membersIn('', {}, text))).toBe(expected);
  });

  test('has the members of the query and the body', () => {
    expect(textOf(membersIn('b=2', { 'Content-Type': FORM }, 'a=1'))).toBe('a: 1, b: 2');
    expect(textOf(membersIn('{"b":"2"}', { 'Content-Type': 'text/json' }, 'a=1'))).toBe('a: 1, b: 2');
  });

  test('what URLSearchParams writes is read unchanged', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.string({ minLength: 1 }), fc.string()), { minLength: 1 }), (list) => {
        const text = new URLSearchParams(list).toString();
        expect(pairs(readForm(text))).toEqual(list);
      }),
    );
  });

  test.each(['{"a":"&action=withdraw&"}', ' \n[1]', '\u00ef\u00bb\u00bf{}'])(
    'that looks like JSON is unclear: %j',
    (text) => {
      const body = Buffer.from(text, 'latin1');
      expect(membersIn(body, { 'Content-Type': FORM })).toEqual(
        unclear('its body is sent as a form and looks like JSON'),
      );
    },
  );

  test.each(['&', ';'])('with more than 1000 members is unclear, separated by %s', (sign) => {
    const many = (count: number) => Array(count).fill('a=1').join(sign);
    expect(readForm(many(1001))).toEqual(unclear('its body has too many members'));
    expect(membersIn('', {}, many(1001))).toEqual(unclear('its query has too many members'));
    expect(readForm(many(1000))).toHaveProperty('members.length', 1000);
    expect(membersIn('', {}, many(1000))).toHaveProperty('members.length', 1000);
  });
});
