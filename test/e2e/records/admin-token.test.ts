import { describe, expect, it } from 'vitest';
import { MAX_IN_ALL, MAX_OF_ADDRESS } from '../../../src/admin/tries.ts';
import { send } from '../../support/client.ts';
import {
  ADMIN_TOKEN,
  adminPortOf,
  codeOf,
  METRICS_TOKEN,
  READER_TOKEN,
  SUPPORT_TOKEN,
  TestBrowser,
} from '../../support/console.ts';
import { movableClock } from '../../support/movable-clock.ts';
import { stackForFile } from '../../support/stack.ts';

const FIVE_MINUTES_MS = 5 * 60_000;
const WRONG = 'a request on the admin port was refused: wrong token';

const stack = await stackForFile();

/** An admin port of its own for each test, because tries are counted for the whole port. */
async function open() {
  const clock = movableClock();
  const port = await adminPortOf(stack, clock);
  /** Asks from an address of this machine, which has the whole of 127.0.0.0/8. */
  const ask = (token: string, { path = '/metrics', from = 1 } = {}) =>
    send(port.url, {
      ...{ path, localAddress: `127.0.0.${from}` },
      headers: { Authorization: `Bearer ${token}` },
    });
  return { ...port, clock, ask };
}

describe('a wrong bearer token', () => {
  it('is refused as the admin token, not as a secret key, and logged without it', async () => {
    const { url, ask, log } = await open();
    for (const path of ['/metrics', '/records', `/records/${'0'.repeat(48)}`]) {
      const answer = await ask(`a guess at ${path}`, { path });
      expect(codeOf(answer)).toBe('401 wrong_token');
      expect(answer.headers['www-authenticate']).toBe('Bearer realm="oncegate admin"');
      expect(answer.body.toString()).toMatch(/admin\.token/);
      expect(answer.body.toString()).not.toMatch(/secret key|a guess/);
    }
    const lines = log.filter(({ msg }) => msg === WRONG);
    expect(lines).toMatchObject([
      { client: '127.0.0.1', path: '/metrics' },
      { client: '127.0.0.1', path: '/records' },
      { client: '127.0.0.1', path: '/records' },
    ]);
    expect(JSON.stringify(log)).not.toContain('a guess');
    for (const headers of [{}, { Authorization: `Basic ${ADMIN_TOKEN}` }, { Authorization: 'Bearer' }])
      expect(codeOf(await send(url, { path: '/metrics', headers }))).toBe('401 token_required');
    expect(log.filter(({ msg }) => msg === WRONG)).toHaveLength(lines.length);
  });

  it('is every token but admin.token for records, and none of the console for metrics', async () => {
    const { ask, log } = await open();
    for (const token of [ADMIN_TOKEN, SUPPORT_TOKEN, READER_TOKEN, METRICS_TOKEN])
      expect((await ask(token)).status).toBe(200);
    for (const token of [SUPPORT_TOKEN, READER_TOKEN])
      for (const path of ['/records', `/records/${'0'.repeat(48)}`])
        expect(codeOf(await ask(token, { path }))).toBe('401 wrong_token');
    expect(log.filter(({ msg }) => msg === WRONG)).toMatchObject([
      { path: '/records' },
      { path: '/records' },
    ]);
  });

  it('is counted and logged once while its address repeats it, and again after five minutes', async () => {
    const { ask, log, clock } = await open();
    for (let i = 0; i < 2 * MAX_OF_ADDRESS; i++)
      expect(codeOf(await ask('an old token of Prometheus'))).toBe('401 wrong_token');
    expect((await ask(ADMIN_TOKEN)).status).toBe(200);
    expect(log.filter(({ msg }) => msg === WRONG)).toHaveLength(1);
    clock.pass(FIVE_MINUTES_MS);
    await ask('an old token of Prometheus');
    expect(log.filter(({ msg }) => msg === WRONG)).toHaveLength(2);
  });

  it('is one of ten: then the address is refused, also with a right token and at the login', async () => {
    const { url, ask, clock } = await open();
    for (let i = 0; i < MAX_OF_ADDRESS; i++) {
      expect(codeOf(await ask(`guess ${i}`))).toBe('401 wrong_token');
      // A right token does not reset the count of wrong ones.
      if (i === 5) expect((await ask(ADMIN_TOKEN)).status).toBe(200);
    }
    const refused = await ask(ADMIN_TOKEN);
    expect(codeOf(refused)).toBe('429 too_many_tries');
    expect(codeOf(await ask(ADMIN_TOKEN, { path: '/records' }))).toBe('429 too_many_tries');
    expect(codeOf(await new TestBrowser(url).login())).toBe('429 too_many_tries');
    expect((await ask(ADMIN_TOKEN, { from: 2 })).status).toBe(200);
    clock.pass(Number(refused.headers['retry-after']) * 1000);
    expect((await ask(ADMIN_TOKEN)).status).toBe(200);
  });

  it('is one of fifty from all addresses, which do not keep the metrics from an address that has the token', async () => {
    const { ask, clock } = await open();
    expect((await ask(ADMIN_TOKEN, { from: 200 })).status).toBe(200);
    const codes = new Set<string>();
    for (let i = 0; i <= MAX_IN_ALL; i++)
      codes.add(`${i < MAX_IN_ALL ? 'before' : 'after'} ${codeOf(await ask('a guess', { from: 2 + i }))}`);
    expect([...codes]).toEqual(['before 401 wrong_token', 'after 429 too_many_tries']);
    expect(codeOf(await ask(ADMIN_TOKEN, { from: 201 }))).toBe('429 too_many_tries');
    for (let i = 0; i < MAX_OF_ADDRESS; i++)
      expect(codeOf(await ask(`guess ${i}`, { from: 200 }))).toBe('401 wrong_token');
    expect(codeOf(await ask(ADMIN_TOKEN, { from: 200 }))).toBe('429 too_many_tries');
    clock.pass(FIVE_MINUTES_MS);
    expect((await ask(ADMIN_TOKEN, { from: 201 })).status).toBe(200);
  });
});
