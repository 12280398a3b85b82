/** A process that opens the gateways' database, begins a transaction, and stops itself. After SIGCONT it ends the transaction. */
import { DatabaseSync } from 'node:sqlite';
import './exit-with-suite.ts';

const [path = '', as] = process.argv.slice(2);
const database = new DatabaseSync(path, { readOnly: as === 'reader' });
database.exec('PRAGMA busy_timeout = 10000');
database.exec(as === 'reader' ? 'BEGIN' : 'BEGIN IMMEDIATE');
// SQLite takes the snapshot at the first read.
database.prepare('SELECT count(*) FROM sqlite_schema').get();
process.stdout.write('holds\n', () => {
  process.kill(process.pid, 'SIGSTOP');
  database.exec('ROLLBACK');
  database.close();
  process.exit();
});
