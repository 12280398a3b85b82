import type { Guard } from '../guards.ts';

const AT = 'src/store/sqlite';
const CONTRACT = 'test/contract/sqlite.test.ts';
const CLOCK = 'test/contract/sqlite-clock.test.ts';
const FORMATS = 'test/contract/formats.test.ts';
const IO_ERRORS = 'test/contract/sqlite-io-errors.test.ts';
const TRANSITIONS = { file: `${AT}/transitions.ts`, test: CONTRACT };
const STORE = { file: `${AT}/sqlite-store.ts`, test: CONTRACT };
const CIPHER = { file: 'src/store/response-cipher.ts', test: CONTRACT };
const ROW = { file: `${AT}/records-table.ts`, test: CONTRACT };
const THREAD = `${AT}/writer-thread.ts`;
const WRITER = { file: `${AT}/writer.ts`, test: 'test/contract/sqlite-writer.test.ts' };

const foreign = (write: string) => `${write}, under a foreign token, where the scope is executing, is stale`;

export const sqliteGuards: readonly Guard[] = [
  {
    file: `${AT}/records-table.ts`,
    without: 'a start looks first and writes later (SQLite)',
    text: 'ON CONFLICT (scope) DO NOTHING',
    replacement: 'ON CONFLICT (scope) DO UPDATE SET token = excluded.token',
    test: CONTRACT,
    named: 'of many starts on one scope has one winner',
  },
  {
    file: THREAD,
    without: 'a write is answered before its COMMIT (SQLite)',
    text: `      commit.run();
      const tookMs`,
    replacement: `      setTimeout(() => commit.run(), 100);
      const tookMs`,
    test: CONTRACT,
    named: 'creates the record of an absent scope, and a peek does not',
  },
  {
    ...STORE,
    without: 'a start that arrives late executes a completed request again (SQLite)',
    text: "if (record.state === 'executing' && record.token.equals(token)) return { kind: 'started' };",
    replacement: "if (record.token.equals(token)) return { kind: 'started' };",
    named: 'sent again when its scope is completed does not start',
  },
  {
    ...TRANSITIONS,
    without: 'a complete does not compare its token (SQLite)',
    text: "    if (!isToken(row, execution)) return 'stale';\n",
    replacement: '',
    named: foreign('complete'),
  },
  {
    ...TRANSITIONS,
    without: 'a release does not compare its token (SQLite)',
    text: `    const row = this.#owned(owner);
    if (!row || row.record.state === 'completed') return 'stale';
    this.#write(this.#statements.remove, row.id);`,
    replacement: `    const row = this.#read(owner);
    if (!row || row.record.state === 'completed') return 'stale';
    this.#write(this.#statements.remove, row.id);`,
    named: foreign('release'),
  },
  {
    ...TRANSITIONS,
    without: 'a markInDoubt does not compare its token (SQLite)',
    text: `    const row = this.#owned(owner);
    if (!row || row.record.state === 'completed') return 'stale';
    // A record`,
    replacement: `    const row = this.#read(owner);
    if (!row || row.record.state === 'completed') return 'stale';
    // A record`,
    named: foreign('markInDoubt'),
  },
  {
    ...TRANSITIONS,
    without: 'a renewal does not compare its token (SQLite)',
    text: `    const row = this.#owned(owner);
    if (!row) return 'stale';`,
    replacement: `    const row = this.#read(owner);
    if (!row) return 'stale';`,
    named: foreign('renew'),
  },
  {
    ...CIPHER,
    without: 'a stored response can be moved to another record',
    text: `oncegate response 1 \${scope} \${status} \${keyId}`,
    replacement: `oncegate response 1 \${scope.length} \${status} \${keyId}`,
    named: 'that was replaced by that of another record of the same merchant is not read',
  },
  {
    ...CIPHER,
    without: 'a stored response can get another status',
    text: `oncegate response 1 \${scope} \${status} \${keyId}`,
    replacement: `oncegate response 1 \${scope} \${typeof status} \${keyId}`,
    named: 'that was replaced by one with another status is not read',
  },
  {
    ...CIPHER,
    without: 'a response whose encryption key is unknown counts as a tombstone',
    text: "throw new UnreadableRecord(this.whyUnknown(keyId) as string, 'unknown_key')",
    replacement: 'return { status, headers: [], body: bytes }',
    named: 'under an unknown key is never treated as absent',
  },
  {
    ...TRANSITIONS,
    without: 'a resolution does not compare the token that was seen (SQLite)',
    text: `const row = this.#owned(command);
    if (!row || row.record.state === 'completed') return 'changed';`,
    replacement: `const row = this.#read(command);
    if (!row || row.record.state === 'completed') return 'changed';`,
    named: 'under another token than that of the record answers changed, and writes nothing',
  },
  {
    ...TRANSITIONS,
    without: 'a restart takes the execution of another owner for its own (SQLite)',
    text: "if (row.record.state === 'executing' && isToken(row, execution)) return 'ok';",
    replacement: "if (row.record.state === 'executing') return 'ok';",
    named: 'a restart of a record in doubt > changes nothing where the scope is executing',
  },
  {
    ...TRANSITIONS,
    without: 'a restart takes a record that is not in doubt (SQLite)',
    text: "if (row.record.state !== 'in_doubt') return 'changed';",
    replacement: '',
    named: 'a restart of a record in doubt > changes nothing where the scope is executing',
  },
  {
    ...TRANSITIONS,
    without: 'another request restarts a key in doubt (SQLite)',
    text: "if (!row?.record.fingerprint.equals(unpackBytes(execution.fingerprint))) return 'changed';",
    replacement: "if (!row) return 'changed';",
    named: 'changes nothing where there is no record, or one with another fingerprint',
  },
  {
    ...TRANSITIONS,
    without: 'a voided token starts (SQLite)',
    text: `  #start(execution: CommandOf<'start'>): Answers['start'] {
    if (this.#isVoided(execution)) return 'voided';`,
    replacement: "  #start(execution: CommandOf<'start'>): Answers['start'] {",
    named: 'does not start when its start arrives after its release',
  },
  {
    ...TRANSITIONS,
    without: 'a voided token restarts (SQLite)',
    text: `  #restart(execution: CommandOf<'restart'>): Answers['restart'] {
    if (this.#isVoided(execution)) return 'voided';`,
    replacement: "  #restart(execution: CommandOf<'restart'>): Answers['restart'] {",
    named: 'does not restart when its restart arrives after its markInDoubt',
  },
  {
    ...TRANSITIONS,
    without: 'a release does not void its token (SQLite)',
    text: `  #release(owner: CommandOf<'release'>): Answers['release'] {
    if (owner.voidToken) this.#void(owner);`,
    replacement: "  #release(owner: CommandOf<'release'>): Answers['release'] {",
    named: 'does not start again when its start was released',
  },
  {
    ...TRANSITIONS,
    without: 'a markInDoubt does not void its token (SQLite)',
    text: `  #markInDoubt(owner: CommandOf<'markInDoubt'>): Answers['markInDoubt'] {
    if (owner.voidToken) this.#void(owner);`,
    replacement: "  #markInDoubt(owner: CommandOf<'markInDoubt'>): Answers['markInDoubt'] {",
    named: 'does not restart again when its restart was marked in doubt',
  },
  {
    ...TRANSITIONS,
    without: 'a start whose commit failed comes back after its release (SQLite)',
    text: `  #release(owner: CommandOf<'release'>): Answers['release'] {
    if (owner.voidToken) this.#void(owner);`,
    replacement: `  #release(owner: CommandOf<'release'>): Answers['release'] {
    if (owner.voidToken && this.#owned(owner)) this.#void(owner);`,
    test: IO_ERRORS,
    named: 'the frames of a start are gone if a release under its token was answered before the kill',
  },
  {
    ...TRANSITIONS,
    without: 'the key of a dead owner is executed again (SQLite)',
    text: 'this.#write(this.#statements.markDead, this.#now.wallMs, row.id);',
    replacement: `{
      this.#removeExpired(execution);
      this.#insert(execution, undefined);
      return 'started';
    }`,
    named: 'a start after the lease is over marks the scope in doubt, and it stays in doubt',
  },
  {
    ...TRANSITIONS,
    without: 'an owner that renews its lease counts as dead (SQLite)',
    text: 'Number(lost || row.record.wasInDoubt), this.#aliveAt(), row.id);',
    replacement: 'Number(lost || row.record.wasInDoubt), row.aliveAt, row.id);',
    named: 'a start answers in_flight as long as the owner renews',
  },
  {
    ...TRANSITIONS,
    without: 'a lease that was lost and taken again leaves no trace (SQLite)',
    text: 'Number(lost || row.record.wasInDoubt)',
    replacement: 'Number(row.record.wasInDoubt)',
    named: 'a renewal after the lease is over takes the lease again and answers lost',
  },
  {
    ...ROW,
    without: 'an owner of another boot counts as alive (SQLite)',
    text: 'aliveAt >= bootBeganAt && ',
    replacement: 'bootBeganAt >= 0 && ',
    test: CLOCK,
    named:
      'whose monotonic clock begins at 5000500, running time continues, and owners of the earlier boot are dead',
  },
  {
    ...TRANSITIONS,
    without: 'a key in doubt expires with the retention (SQLite)',
    text: `      this.#expiresIn(inDoubtRetentionMs),
      ...(completion`,
    replacement: `      this.#expiresIn(retentionMs),
      ...(completion`,
    named: 'of a record that is executing or in doubt is inDoubtRetentionMs, longer than that of a result',
  },
  {
    ...TRANSITIONS,
    without: 'a complete extends the retention (SQLite)',
    text: 'doubtful ? this.#expiresIn(inDoubtRetentionMs) : retainedUntil,',
    replacement: 'this.#expiresIn(doubtful ? inDoubtRetentionMs : retentionMs),',
    named: 'of a record that was never in doubt counts from the start, not from the complete',
  },
  {
    ...TRANSITIONS,
    without: 'a key that was in doubt is kept no longer than others (SQLite)',
    text: `      record.wasInDoubt ||
      record.state === 'in_doubt' ||`,
    replacement: "      record.state === 'in_doubt' ||",
    named: 'is inDoubtRetentionMs again after a complete after a restart',
  },
  {
    ...TRANSITIONS,
    without: 'a complete after the lease has lapsed does not count as doubtful (SQLite)',
    text: '      !ownerIsAlive(row, this.#now) ||\n',
    replacement: '',
    named: 'a complete after the lease is over counts as having been in doubt, even if no start marked it',
  },
  {
    ...TRANSITIONS,
    without: 'a complete that finds no record is lost (SQLite)',
    text: `      this.#insert(execution, execution);
      return 'ok';`,
    replacement: "      return 'stale';",
    named: 'that completes an absent scope creates the whole record, as one that was in doubt',
  },
  {
    ...TRANSITIONS,
    without: 'a late complete overwrites a resolution (SQLite)',
    text: 'unpackBytes(command.newToken),',
    replacement: 'record.token,',
    named: 'completes a record in doubt with a response, under a new token',
  },
  {
    ...TRANSITIONS,
    without: 'a key is resolved while its owner is alive (SQLite)',
    text: "if (ownerIsAlive(row, this.#now)) return 'alive';",
    replacement: '',
    named: 'of a scope that is executing answers alive, and writes nothing',
  },
  {
    ...ROW,
    without: 'a record that cannot be read is absent (SQLite)',
    text: 'return values && readRow(values);',
    replacement: `try {
    return values && readRow(values);
  } catch {
    return undefined;
  }`,
    named: '(no token, where it was executing) is never treated as absent and never taken over',
  },
  {
    ...ROW,
    without: 'another request under the same key gets the result (SQLite)',
    text: "if (Buffer.compare(record.fingerprint, fingerprint) !== 0) return { kind: 'mismatch' };",
    replacement: '',
    named: 'with another fingerprint, of a scope that is completed, answers mismatch, as a peek does',
  },
  {
    file: THREAD,
    without: 'a COMMIT that failed counts as surely not written (SQLite)',
    text: 'maybeWritten = transitions.written > 0;',
    replacement: 'maybeWritten = transitions.written < 0;',
    test: IO_ERRORS,
    named: 'the frames of a start are valid, so the start counts as maybe written',
  },
  {
    ...WRITER,
    without: 'a write that a dead writer had not answered counts as surely not written (SQLite)',
    text: '`, true));\n    if (this.#isDrained())',
    replacement: '`, false));\n    if (this.#isDrained())',
    named: 'is replaced; writes that it had not answered are maybe written, and later writes succeed',
  },
  {
    ...WRITER,
    without: 'a write that is under way at its time limit counts as surely not written (SQLite)',
    text: 'if (askedMs <= latestMs) reject(unavailable(message, true));',
    replacement: 'if (askedMs <= latestMs) reject(unavailable(message, false));',
    named: 'that are under way at their time limit are maybe written',
  },
  {
    file: THREAD,
    without: 'the writer writes to a file that was replaced (SQLite)',
    text: `      this.#identity.check();
      this.#connection ??= this.#reconnect();`,
    replacement: '      this.#connection ??= this.#reconnect();',
    test: 'test/contract/sqlite-files.test.ts',
    named: '(records.db) stops all writes until the file is back, and the error says so',
  },
  {
    ...STORE,
    without: 'a start is accepted below the disk reserve (SQLite)',
    text: `      this.#refuseNew();
      const answer`,
    replacement: '      const answer',
    test: 'test/contract/sqlite-disk-reserve.test.ts',
    named: 'below the disk reserve nothing starts, and running executions are completed and replayed',
  },
  {
    ...STORE,
    without: 'a restart is accepted below the disk reserve (SQLite)',
    text: `    this.#refuseNew();
    const answer`,
    replacement: '    const answer',
    test: 'test/contract/sqlite-disk-reserve.test.ts',
    named: 'below the disk reserve nothing starts, and running executions are completed and replayed',
  },
  {
    file: `${AT}/running-time.ts`,
    without: 'records age by the wall clock (SQLite)',
    text: 'runningMs: this.#clock.monotonicMs() + this.offsetMs,',
    replacement: 'runningMs: this.#clock.wallMs() + this.offsetMs,',
    test: CLOCK,
    named: 'records age by the monotonic clock, whatever the wall clock does',
  },
  {
    file: `${AT}/running-time.ts`,
    without: 'records age by the monotonic clock of another boot (SQLite)',
    text: 'const offsetMs = observedAt - monotonicMs;',
    replacement: 'const offsetMs = 0;',
    test: CLOCK,
    named:
      'whose monotonic clock begins at 90000000, running time continues, and owners of the earlier boot are dead',
  },
  {
    file: `${AT}/doubt-counter.ts`,
    without: 'no count of the keys in doubt finds what a dead gateway has started (SQLite)',
    text: "state = 'in_doubt' OR state = 'executing' AND",
    replacement: "state = 'in_doubt' AND",
    test: CONTRACT,
    named: 'has those in doubt and those of dead owners by operation',
  },
  {
    ...TRANSITIONS,
    without: 'resolutions are not counted (SQLite)',
    text: "    countResolution(this.#database, completion ? 'completed' : 'released', command.source);\n",
    replacement: '',
    named: 'has the number of resolutions by what they said',
  },
  {
    file: `${AT}/writer-thread.ts`,
    without: 'a gateway writes into a file that a later version has migrated meanwhile',
    text: '      refuseOtherSchema(this.#data.file, versionIn(schema));\n',
    replacement: '      versionIn(schema);\n',
    test: FORMATS,
    named: 'that a later version has migrated under a gateway gets no write of it',
  },
  {
    file: `${AT}/records-table.ts`,
    without: 'a column that a minor version has added ends all writes of the version before',
    text: '`INSERT INTO mark (id, store, marks, protect_until, observe_until) VALUES',
    replacement: '`INSERT INTO mark VALUES',
    test: FORMATS,
    named: 'with more columns and tables is one that an added feature may have made',
  },
];
