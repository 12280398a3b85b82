import type { Guard } from './guard.ts';

const FUNCTIONS = 'src/store/postgres/functions.ts';
const LANES = 'src/store/postgres/lanes.ts';
const CONNECTION = 'src/store/postgres/connection.ts';
const TRANSACTIONS = 'src/store/postgres/transactions.ts';
const REGISTER = 'src/store/postgres/register.ts';

const CONTRACT = ['registers/registers', 'the register in postgres > keeps the contract'] as const;
const SETTINGS = [
  'contract/postgres',
  'the function writes in no other isolation level than read committed',
] as const;

/** The function of the database, its connections, and what their failures mean. */
export const postgresGuards: readonly Guard[] = [
  [
    'a start that was taken back can still arrive (PostgreSQL)',
    [FUNCTIONS, '', "v.token = w.token AND v.until > now) THEN 'void'", "false) THEN 'void'"],
    CONTRACT,
  ],
  [
    'a write overwrites another one that it has not seen (PostgreSQL)',
    [FUNCTIONS, '', 'WHEN w.expected IS DISTINCT FROM r.revision', 'WHEN false'],
    CONTRACT,
  ],
  [
    'a write that does not see what is committed decides (PostgreSQL)',
    [FUNCTIONS, '', "IF current_setting('transaction_isolation') <>", 'IF NULL <>'],
    SETTINGS,
  ],
  [
    'a write does not wait for the disk and the standby, because its role does not (PostgreSQL)',
    [FUNCTIONS, '', "IN ('off', 'local', 'remote_write')", "IN ('off')"],
    SETTINGS,
  ],
  [
    'an answer rests on what no standby has (PostgreSQL)',
    [FUNCTIONS, '', 'IF must_last AND NOT wrote', 'IF false AND NOT wrote'],
    [
      'contract/postgres-standby',
      'a write is perhaps written, and its answer waits until the standby has it',
    ],
  ],
  [
    'a write whose wait for the standby was cancelled counts as done (PostgreSQL)',
    [CONNECTION, '', "if (code !== '00000' &&", "if (code === '' &&"],
    [
      'contract/postgres-standby',
      'a write is perhaps written, and its answer waits until the standby has it',
    ],
  ],
  [
    'a write whose connection was lost counts as surely not written (PostgreSQL)',
    [CONNECTION, 'failureOf', 'sent && (!isOfServer ||', 'sent && isOfServer && (false ||'],
    ['contract/postgres-faults', 'that is cut before an answer arrives, a start is perhaps written'],
  ],
  [
    'a write that was sent and not answered counts as surely not written (PostgreSQL)',
    [LANES, '', 'pending.reject(noAnswer(timeoutMs))', 'pending.reject(noAnswer(timeoutMs, NOT_WRITTEN))'],
    ['contract/postgres-faults', 'that loses an answer, a start is perhaps written'],
  ],
  [
    'a gateway stays with a primary that was replaced (PostgreSQL)',
    [LANES, '#look', '= this.#readers.find(isIdle)', '= undefined as Lane | undefined'],
    ['contract/postgres-standby', 'is found by a gateway whose connections to the old primary stay open'],
  ],
  [
    'a failover to a standby that may lack writes is not noticed (PostgreSQL)',
    [REGISTER, 'lostBy', 'CASE WHEN waits OR', 'CASE WHEN true OR'],
    ['contract/postgres-standby', 'is noticed by the identity of the store, and refuses every start'],
  ],
  [
    'a savepoint that is rolled back takes the key with it (PostgreSQL)',
    [FUNCTIONS, 'functionsSql', 'w.id AND xmin = pg_current_xact_id()::xid', 'w.id'],
    ['contract/postgres-transactions', 'refuses to claim in a savepoint, and to complete in one'],
  ],
  [
    'a transaction that was aborted counts as committed (PostgreSQL)',
    [TRANSACTIONS, 'commit', "tag !== 'COMMIT'", "tag === ''"],
    ['contract/postgres-transactions', 'is not committed if a statement has failed or was not awaited'],
  ],
  [
    'tables that were made again get starts on connections of before (PostgreSQL)',
    ['src/store/postgres/batch.ts', '#send', 'connection.server', 'null'],
    [
      'contract/postgres-faults',
      'gets no record of it before a new connection has shown that it is another store',
    ],
  ],
  [
    'a merchant is answered before the transaction of a handler has ended',
    ['src/middleware/transactions/handler-transaction.ts', 'settle', 'if (!hasEnded)', 'if (false)'],
    [
      'e2e/embedding/transaction-early',
      'in flight, if the transaction does not end in time, and the commit is replayed',
    ],
  ],
  [
    'a transaction whose COMMIT had no answer counts as rolled back',
    [
      'src/middleware/transactions/transaction-key.ts',
      'afterLostCommit',
      'claim.isOver = false',
      'claim.isOver = true',
    ],
    ['e2e/embedding/transaction', 'is decided by the store if its COMMIT has no answer'],
  ],
];
