/** Set-up of the unit tests: none opens a database or a socket. Tests that do are in other folders. */
import { Server, Socket } from 'node:net';
import { DatabaseSync } from 'node:sqlite';

const refuse = (what: string) => () => {
  throw new Error(`a unit test uses ${what}: move it to test/integration, test/engine or test/contract`);
};

Socket.prototype.connect = refuse('a socket');
Server.prototype.listen = refuse('a port');
DatabaseSync.prototype.exec = refuse('a database');
DatabaseSync.prototype.prepare = refuse('a database');
