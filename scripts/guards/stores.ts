import type { Guard } from './guard.ts';

const REDIS = 'src/store/redis/register.ts';
const COMMANDS = 'src/store/redis/commands.ts';
const CREATE = 'src/store/redis/scripts/create.lua';
const REPLACE = 'src/store/redis/scripts/replace.lua';
const CHANGES = 'src/store/sqlite/changes.ts';
const ROWS = 'src/store/sqlite/records.ts';
const WRITER = 'src/store/sqlite/writer.ts';
const APPLICATION = 'src/store/sqlite/application-writer.ts';
const COPY = 'src/ledger/store-copy.ts';

const TRANSACTION = 'e2e/embedding/sqlite-transaction';
const REDIS_CONTRACT = ['registers/registers', 'the register in redis > keeps the contract'] as const;
const SQLITE_CONTRACT = ['registers/registers', 'the register in sqlite > keeps the contract'] as const;

/** The scripts of the register in Redis, and what is answered from them. */
export const redisGuards: readonly Guard[] = [
  [
    'a start overwrites the record that is there (Redis)',
    [CREATE, '', "'NX', 'GET'", "'GET'"],
    REDIS_CONTRACT,
  ],
  [
    'a start that was taken back can still arrive (Redis)',
    [CREATE, '', "'EXISTS', KEYS[5]) == 1", "'EXISTS', KEYS[5]) == 2"],
    REDIS_CONTRACT,
  ],
  [
    'a start is not in the index of open records, by which dead owners are found (Redis)',
    [CREATE, '', "redis.pcall('ZADD'", "redis.pcall('ZSCORE'"],
    REDIS_CONTRACT,
  ],
  [
    'a write overwrites another one that it has not seen (Redis)',
    [REPLACE, '', 'revision == ARGV[1]', 'true'],
    REDIS_CONTRACT,
  ],
  [
    'a key is resolved while its owner holds the lease (Redis)',
    [REPLACE, '', "ARGV[8] == '1'", 'false'],
    REDIS_CONTRACT,
  ],
  [
    'a store that is closed for a copy takes results (Redis)',
    [REPLACE, '', "(closed ~= 's' or ARGV[9] == '1')", 'false'],
    REDIS_CONTRACT,
  ],
  [
    'an owner that was replaced keeps its lease (Redis)',
    [REPLACE, '', "(ARGV[7] or '') ~= '' and", 'false and'],
    REDIS_CONTRACT,
  ],
  [
    'a record of another format is read as one of this format (Redis)',
    ['src/store/codec.ts', 'decodeHead', 'bytes[layout.version] !== STORE_FORMAT', 'false'],
    ['contract/redis', 'that cannot be read > is never treated as absent'],
  ],
  [
    'the number of replicas that have a write does not matter',
    [COMMANDS, '#sendBatch', 'Number(reached) >= this.#replicas', 'true'],
    ['contract/redis-replicas', 'a start that it does not acknowledge fails, and can be released'],
  ],
  [
    'a replay rests on a record that no replica has',
    [REDIS, 'toReplicate', ": 'record'", ": 'nothing'"],
    ['contract/redis-replicas', 'a start replays nothing that a failover could lose'],
  ],
  [
    'the WAIT of a start that replays does not cover the record',
    [CREATE, '', "ARGV[5] == '1'", 'false'],
    ['contract/redis-replicas', 'a start writes the record that it replays'],
  ],
  [
    'a command whose reply was lost counts as never sent',
    [COMMANDS, 'failureOf', 'maybeWritten = !', 'maybeWritten = false && !'],
    ['contract/redis-wire', 'during a start, the script is executed once'],
  ],
  [
    'a Redis with more replicas than writes wait for gets starts',
    ['src/store/redis/health.ts', 'inspect', 'if (mayLoseOnFailover)', 'if (excess)'],
    ['contract/redis-settings', 'with more replicas than a write waits for gets no start'],
  ],
];

/** What the writer thread does in one transaction, and what its failures mean. */
export const sqliteGuards: readonly Guard[] = [
  [
    'a start overwrites the record that is there (SQLite)',
    [CHANGES, 'INSERT', 'DO NOTHING', 'DO UPDATE SET record = excluded.record'],
    SQLITE_CONTRACT,
  ],
  [
    'a start that was taken back can still arrive (SQLite)',
    [CHANGES, '#refusalOf', 'this.#anyVoid &&', 'false &&'],
    SQLITE_CONTRACT,
  ],
  [
    'a store that is closed for a copy starts keys (SQLite)',
    [CHANGES, '#refusalOf', 'unlessClosed &&', 'false &&'],
    SQLITE_CONTRACT,
  ],
  [
    'a write overwrites another one that it has not seen (SQLite)',
    [CHANGES, 'EXPECTED', '{REVISION} = ?3', '{REVISION} IS NOT NULL'],
    SQLITE_CONTRACT,
  ],
  [
    'a key is resolved while its owner holds the lease (SQLite)',
    [CHANGES, '#write', 'unlessLeased &&', 'false &&'],
    SQLITE_CONTRACT,
  ],
  [
    'an owner that was replaced keeps its lease (SQLite)',
    [CHANGES, '#write', 'if (endLeaseOf)', 'if (false)'],
    SQLITE_CONTRACT,
  ],
  [
    'a record that cannot be read is absent (SQLite)',
    [ROWS, 'readRow', "Uint8Array)) throw bad('record')", 'Uint8Array)) return undefined'],
    ['contract/sqlite', 'that cannot be read > is never treated as absent'],
  ],
  [
    'a COMMIT that failed counts as surely not written (SQLite)',
    ['src/store/sqlite/writer-thread.ts', 'commit', 'maybeWritten = wrote', 'maybeWritten = false'],
    ['contract/sqlite-io-errors', 'the frames of a start are valid, so the start counts as maybe written'],
  ],
  [
    'a write that a dead writer had not answered counts as surely not written (SQLite)',
    [WRITER, '#lostThread', ', true)', ', false)'],
    ['contract/sqlite-writer', 'writes that it had not answered are maybe written'],
  ],
  [
    'the writer writes to a file that was replaced (SQLite)',
    ['src/store/sqlite/writer-thread.ts', 'commit', 'checkInodes(file, this.#inodes)', ''],
    ['contract/sqlite-files', '(records.db) stops all writes until the file is back, and the error says so'],
  ],
  [
    'a start is accepted below the disk reserve (SQLite)',
    ['src/store/sqlite/sqlite-register.ts', '#write', 'isExecution ?', 'false ?'],
    ['contract/sqlite-disk-reserve', 'below the disk reserve nothing starts'],
  ],
  [
    'records expire by the monotonic clock of another boot (SQLite)',
    ['src/store/sqlite/running-time.ts', 'beginBoot', 'observedAt - monotonicMs', '0'],
    ['contract/sqlite-clock', 'whose monotonic clock begins at 90000000, running time continues'],
  ],
  [
    'a key is claimed in a transaction or a savepoint of the application, which can take it back (SQLite)',
    [APPLICATION, 'commit', 'if (this.#database.isTransaction)', 'if (false)'],
    [TRANSACTION, 'refuses a connection that is in a transaction of the application'],
  ],
  [
    'a function goes on after its transaction has ended, and pays without its key (SQLite)',
    [
      'src/middleware/transactions/our-transaction.ts',
      '#attemptAtOnce',
      'if (isPromise(answer))',
      'if (false)',
    ],
    [TRANSACTION, 'if the function returns a promise, because it goes on'],
  ],
  [
    'a function commits its payout before its key is completed, and that counts as one transaction (SQLite)',
    [APPLICATION, '#endSavepoint', "this.#database.exec('RELEASE oncegate')", ''],
    [TRANSACTION, 'is in doubt, and is not paid again, if the function ends the transaction itself'],
  ],
  [
    'a power cut takes back a transaction, because the application does not wait for the disk (SQLite)',
    [APPLICATION, '#surviveCrashes', 'found >= needed', 'true'],
    [TRANSACTION, 'survives a power cut, whatever the application has set'],
  ],
];

/** How all records move to another store. */
export const copyGuards: readonly Guard[] = [
  [
    'records are copied to a store that has some',
    [COPY, '#requireEmpty', 'page.length > 0', 'false'],
    ['unit/copy', 'refuses a destination that has records, before it closes it'],
  ],
  [
    'a run of the copy that was replaced opens the destination',
    [
      COPY,
      '#change',
      '!(await side.changeCopyProgress(progress))',
      '!(await side.changeCopyProgress(progress)) && !progress',
    ],
    ['unit/copy', 'that was paused at any call, while another run copied or undid'],
  ],
  [
    'a source that has forgotten keys is copied',
    [COPY, '#requireSourceOf', 'found.count < noted.count', 'false'],
    ['unit/copy', 'is refused if the source was emptied, replaced or restored at any call'],
  ],
  [
    'records that a server has lost during the copy are missing',
    [COPY, '', '(await servers()) === before', 'true'],
    ['unit/copy', 'begins again if a server was replaced during the pass'],
  ],
];
