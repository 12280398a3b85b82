import { type Members, membersOf } from '../../src/requests/members.ts';
import { incoming } from './incoming.ts';

export type Fields = Record<string, string | string[]>;

export const FORM = 'application/x-www-form-urlencoded';

export function membersIn(body: string | Buffer | undefined, fields: Fields = {}, query = ''): Members {
  const req = incoming('POST', `/?${query}`, fields);
  return membersOf(req, query, body === undefined ? undefined : Buffer.from(body));
}

export const readJson = (body: string | Buffer) => membersIn(body, { 'Content-Type': 'application/json' });
export const unclear = (reason: string) => ({ kind: 'unclear', reason });
export const membersOfJson = (json: string) => ({
  kind: 'members',
  members: Object.entries(JSON.parse(json)).map(([name, value]) => ({
    ...{ name, value, isDisputed: false },
    isPlain: /^[A-Za-z0-9_-]*$/.test(name),
  })),
});
export const DUPLICATE = unclear('its body has a duplicate member');
