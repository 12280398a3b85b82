import type { Guard } from '../guards.ts';

const SEAL = 'test/contract/copy-seal.test.ts';
const COPY = 'test/contract/copy.test.ts';
const scriptOf = (name: string) => ({
  file: `src/store/redis/scripts/${name}.lua`,
  test: SEAL,
});
const TABLE = { file: 'src/store/sqlite/copy-table.ts' };
const RUN = { file: 'src/ledger/copy/copy.ts', test: COPY };
const FOLLOWERS = { file: 'src/ledger/copy/followers.ts', test: COPY };
const CLOSED = "if mark and mark ~= 'c' then return redis.error_reply(CLOSED) end";

/** How all records move to another store. */
export const copyGuards: readonly Guard[] = [
  {
    file: 'src/gateway/gateway.ts',
    without: 'a gateway that observes serves on a store that a copy has closed',
    text: 'if (ok || isClosed) return health;',
    replacement: 'if (ok) return health;',
    test: 'test/e2e/records/copy.test.ts',
    named: 'a gateway that observes takes no part in a copy from redis to sqlite',
  },
  {
    ...scriptOf('start'),
    without: 'a Redis whose records were moved starts a key',
    text: "if mark ~= 'c' then return redis.error_reply(CLOSED) end\n  redis",
    replacement: 'redis',
    named: 'redis with the mark of a copy > moved > starts nothing',
  },
  {
    ...scriptOf('start'),
    without: 'a Redis does not log what it starts during a copy',
    text: "redis.call('RPUSH', KEYS[4]",
    replacement: "redis.call('EXISTS', KEYS[4]",
    test: COPY,
    named: 'a copy from redis to sqlite > finds what is started',
  },
  {
    ...scriptOf('start'),
    without: 'a Redis whose records were moved changes the record of a dead owner',
    text: CLOSED,
    replacement: '',
    named: 'redis with the mark of a copy > moved > leaves the record of a dead owner',
  },
  {
    ...scriptOf('restart'),
    without: 'a Redis whose records were moved restarts a key',
    text: CLOSED,
    replacement: '',
    named: 'redis with the mark of a copy > moved > restarts and resolves nothing',
  },
  {
    ...scriptOf('resolve'),
    without: 'a Redis whose records were moved resolves a key',
    text: CLOSED,
    replacement: '',
    named: 'redis with the mark of a copy > moved > restarts and resolves nothing',
  },
  {
    ...scriptOf('complete'),
    without: 'a Redis does not log a record that a late complete creates during a copy',
    text: 'if markOf(KEYS[3]) then',
    replacement: 'if false then',
    named: 'redis with the mark of a copy > moved: logs a complete',
  },
  {
    ...scriptOf('copy-write'),
    without: 'a run of the copy that was replaced writes to a Redis that serves',
    text: "if redis.call('GET', KEYS[4]) ~= ARGV[1] then return 'superseded' end",
    replacement: '',
    named: 'redis with the mark of a copy > no mark is changed',
  },
  {
    ...TABLE,
    without: 'a SQLite whose records were moved starts a key',
    text: 'moved: LOGS_STARTS + REFUSES_STARTS,',
    replacement: 'moved: LOGS_STARTS,',
    test: SEAL,
    named: 'sqlite with the mark of a copy > moved > starts nothing',
  },
  {
    ...TABLE,
    without: 'a SQLite that receives records starts a key',
    text: 'receiving: REFUSES_STARTS,',
    replacement: "receiving: '',",
    test: SEAL,
    named: 'sqlite with the mark of a copy > receiving > starts nothing',
  },
  {
    ...TABLE,
    without: 'a SQLite does not log what it starts during a copy',
    text: 'copying: LOGS_STARTS,',
    replacement: "copying: '',",
    test: COPY,
    named: 'a copy from sqlite to redis > finds what is started',
  },
  {
    file: 'src/store/sqlite/transitions.ts',
    without: 'a start that a mark refuses takes the results of its batch with it',
    text: 'if (isRefusedByTrigger(error)) return',
    replacement: 'if (error === undefined) return',
    test: SEAL,
    named: 'sqlite with the mark of a copy > moved > takes what owners write',
  },
  {
    file: 'src/store/sqlite/copy-side.ts',
    without: 'a run of the copy that was replaced writes to a SQLite that serves',
    text: 'if (readMarkText(this.#database) !== encodeMark(mark)) throw new Superseded();',
    replacement: '',
    test: SEAL,
    named: 'sqlite with the mark of a copy > no mark is changed',
  },
  {
    file: 'src/store/copy-mark.ts',
    without: 'a run that takes over empties the log of the run before',
    text: "(to.state === 'copying' && from?.state !== 'copying')",
    replacement: "to.state === 'copying'",
    test: SEAL,
    named: 'redis with the mark of a copy > the log is empty when a copy begins',
  },
  {
    ...RUN,
    without: 'what was started last before the seal is not copied',
    text: 'copiedInPause = await this.#round();',
    replacement: '',
    named: 'a copy from sqlite to redis > finds what is started',
  },
  {
    ...RUN,
    without: 'a second run does not know what the first one had copied while it was executing',
    text: 'await this.#from.appendToLog(this.#newlyOpen(snapshots));',
    replacement: 'this.#newlyOpen(snapshots);',
    named: 'a copy from sqlite to redis > is finished by another run after it was killed at: sealed',
  },
  {
    ...RUN,
    without: 'records are copied over those of another store',
    text: 'if (!(await this.#to.isEmpty()))',
    replacement: 'if (this.#runId === copyId)',
    named: 'a copy from sqlite to redis > refuses a new store that has records',
  },
  {
    ...RUN,
    without: 'two runs of the copy work at once',
    text: 'if ((await this.#to.readBeat()) !== before)',
    replacement: "if (before === 'never')",
    named: 'a copy from sqlite to redis > is refused while another run works',
  },
  {
    ...FOLLOWERS,
    without: 'a source that was emptied frees the keys that it was executing',
    text: "await requireMark(this.#from, 'moved', this.#mark.copyId);",
    replacement: '',
    named: 'a source that was emptied after the seal frees no key',
  },
  {
    ...FOLLOWERS,
    without: 'a release on the old store frees a key that was started again on the new one',
    text: "copy?.token.equals(token) && copy.state !== 'completed'",
    replacement: "copy !== undefined && copy.state !== 'completed'",
    named: 'a copy from sqlite to redis > a dead owner is in doubt on the new store',
  },
  {
    ...FOLLOWERS,
    without: 'a late result of the old store replaces another execution on the new one',
    text: "if (copy && !isSame) return { scope, found: 'stale' };",
    replacement: '',
    named: 'a copy from sqlite to redis > a dead owner is in doubt on the new store',
  },
];
