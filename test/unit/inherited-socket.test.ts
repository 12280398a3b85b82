import { expect, it } from 'vitest';
import { inheritedSocket } from '../../src/gateway/http-server.ts';

const LISTEN_PID = `${process.pid}`;

it('one socket that was passed to this process is its file descriptor 3', () => {
  expect(inheritedSocket({ LISTEN_PID, LISTEN_FDS: '1' })).toBe(3);
});

it('no socket is inherited without both variables, with none passed, and if they are for another process', () => {
  for (const env of [
    {},
    { LISTEN_FDS: '1' },
    { LISTEN_PID },
    { LISTEN_PID, LISTEN_FDS: '0' },
    { LISTEN_PID, LISTEN_FDS: '' },
    { LISTEN_PID, LISTEN_FDS: 'one' },
    { LISTEN_PID: '', LISTEN_FDS: '1' },
    { LISTEN_PID: '1', LISTEN_FDS: '2' },
  ])
    expect(inheritedSocket(env), JSON.stringify(env)).toBeUndefined();
});

it('several sockets are refused', () => {
  expect(() => inheritedSocket({ LISTEN_PID, LISTEN_FDS: '2' })).toThrow(
    'LISTEN_FDS=2: the gateway serves one',
  );
});
