import { createServer } from 'node:http';
import { connect } from 'node:net';
import { DatabaseSync } from 'node:sqlite';
import { expect, it } from 'vitest';

it('a unit test can use no socket, no port and no database', () => {
  const database = new DatabaseSync(':memory:');
  expect(() => connect(1)).toThrow('a unit test uses a socket');
  expect(() => createServer().listen(0)).toThrow('a unit test uses a port');
  expect(() => database.exec('SELECT 1')).toThrow('a unit test uses a database');
  expect(() => database.prepare('SELECT 1')).toThrow('a unit test uses a database');
});
