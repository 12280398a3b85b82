/** A guard of ours, taken out, and the test that must notice. */
export interface Guard {
  /** What goes wrong without it. */
  without: string;
  file: string;
  /** Occurs exactly once in the file. */
  text: string;
  replacement: string;
  test: string;
  /** Which of the file's tests, by a part of their full names: `suite > test`. */
  named: string;
}

const STORES = 'src/idempotency/stores';
const ENGINE = 'src/idempotency/engine.ts';
const CONCLUSION = 'src/idempotency/conclusion.ts';
const BEGUN = "({ kind: 'begun', confirmed: momentOf(this.#clock), again: false } as Begun)";
const LMDB = { file: `${STORES}/lmdb/lmdb-store.ts`, test: 'test/contract/lmdb.test.ts' };
const LMDB_RECORDS = { ...LMDB, file: `${STORES}/lmdb/records.ts` };
const REDIS = { file: `${STORES}/redis/redis-store.ts`, test: 'test/contract/redis.test.ts' };
const LUA = `${STORES}/redis/commands`;
const WRITES = { file: `${STORES}/redis/writes.ts`, test: 'test/contract/redis-replicas.test.ts' };
const EXECUTOR = 'src/proxy/executor.ts';
const MIDDLEWARE = 'src/idempotency/middleware.ts';

/** One line for each in docs/adr/0010-guards-and-their-tests.md. */
export const guards: readonly Guard[] = [
  {
    ...LMDB_RECORDS,
    without: 'a claim looks first and writes later (LMDB)',
    text: 'inner = this.#records.ifNoExists(key, () => {',
    replacement: 'inner = this.#records.batch(() => {',
    named: 'of many claims on one scope has one winner',
  },
  {
    ...LMDB_RECORDS,
    without: 'a claim does not see what was settled since it looked (LMDB)',
    text: 'const outer = this.#records.ifNoExists(settledKey(scope), () => {',
    replacement: 'const outer = this.#records.batch(() => {',
    test: 'test/contract/lmdb-records.test.ts',
    named: 'adds nothing where it is settled by now',
  },
  {
    ...REDIS,
    without: 'a claim looks first and writes later (Redis)',
    text: "to.setBuffer(key, claimed, 'PX', retentionMs, 'NX', 'GET'),",
    replacement: `this.#client.getBuffer(key).then(async (stands) => {
            if (!stands) await this.#client.set(key, claimed, 'PX', retentionMs);
            return stands;
          }),`,
    named: 'of many claims on one scope has one winner',
  },
  {
    ...LMDB_RECORDS,
    without: 'a write does not compare what it replaces (LMDB)',
    text: 'return this.#records.put(key, bytes, newVersion(), version);',
    replacement: 'return this.#records.put(key, bytes, newVersion());',
    named: 'of an owner who wakes up against one who takes over has one winner',
  },
  {
    ...LMDB_RECORDS,
    without: 'a settlement does not compare what it takes away (LMDB)',
    text: `return this.#records.ifVersion(key, version, () => {
        void this.#records.remove(key);
        void this.#records.put(home`,
    replacement: `return this.#records.batch(() => {
        void this.#records.remove(key);
        void this.#records.put(home`,
    test: 'test/contract/lmdb-records.test.ts',
    named: 'changes nothing where another version is claimed',
  },
  {
    ...LMDB_RECORDS,
    without: 'what is settled stands as unsettled too (LMDB)',
    text: `        void this.#records.remove(key);
        void this.#records.put(home, bytes, newVersion());`,
    replacement: '        void this.#records.put(home, bytes, newVersion());',
    test: 'test/contract/lmdb-records.test.ts',
    named: 'keeps what is not settled in front of all that is, and each record once',
  },
  {
    file: `${STORES}/lmdb/commits.ts`,
    without: 'a store writes on after a commit that failed (LMDB)',
    text: 'if (this.#failure) {',
    replacement: 'if (this.#failure && group.length === 0) {',
    test: 'test/contract/lmdb-commits.test.ts',
    named: 'end with the first that fails',
  },
  {
    file: ENGINE,
    without: 'a request is sent without a begin',
    text: '? await this.#begin(call, owner, claim.tookOver)',
    replacement: `? ${BEGUN}`,
    test: 'test/unit/engine.test.ts',
    named: 'has begun when it runs, and is settled when it is answered',
  },
  {
    ...LMDB,
    without: 'a settlement does not show its token (LMDB)',
    text: "if (!('record' in entry) || !entry.record.token.equals(owner.token)) return 'stale';",
    replacement: "if (!('record' in entry)) return 'stale';",
    named: 'settle, under a foreign token',
  },
  {
    ...REDIS,
    file: `${LUA}/settle.lua`,
    without: 'a settlement does not show its token (Redis)',
    text: "if redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'stale' end\n",
    replacement: '',
    named: 'settle, under a foreign token',
  },
  {
    file: CONCLUSION,
    without: 'what may have been executed is released',
    text: 'const marked = this.#store.markInDoubt(owner)',
    replacement: 'const marked = this.#store.release(owner)',
    test: 'test/unit/engine.test.ts',
    named: 'is in doubt: nobody runs it again',
  },
  {
    ...LMDB,
    without: 'the lease is the only guard of an execution (LMDB)',
    text: "const executing = record.state === 'executing';",
    replacement: 'const executing = false;',
    named: 'after it began, the scope is in doubt and stays so',
  },
  {
    ...REDIS,
    file: `${LUA}/without-owner.lua`,
    without: 'the lease is the only guard of an execution (Redis)',
    text: "if state == 'e' then",
    replacement: 'if false then',
    named: 'after it began, the scope is in doubt and stays so',
  },
  {
    file: EXECUTOR,
    without: 'a request is sent again after a reset',
    text: '    return { ...result, elapsedMs: this.#clock.monotonicMs() - startedMs };',
    replacement: `    if (result.kind === 'unknown' && !('again' in request)) {
      return await this.send(Object.assign(request, { again: true }));
    }
    return { ...result, elapsedMs: this.#clock.monotonicMs() - startedMs };`,
    test: 'test/e2e/http/upstream-failures.test.ts',
    named: 'executed under a key > sent on a connection that closes at this moment',
  },
  {
    file: EXECUTOR,
    without: 'a request that was sent is told as not sent',
    text: 'this.#sent = true;',
    replacement: '',
    test: 'test/e2e/http/upstream-failures.test.ts',
    named: 'executed under a key > sent, then execute-then-reset',
  },
  {
    file: EXECUTOR,
    without: 'a truncated body is taken for the result',
    text: "else this.#end({ kind: 'unknown', reason, timedOut: error instanceof DeadlinePassed });",
    replacement: `else if (this.#status > 0) this.onResponseEnd();
    else this.#end({ kind: 'unknown', reason, timedOut: error instanceof DeadlinePassed });`,
    test: 'test/e2e/idempotency/outcome-in-doubt.test.ts',
    named: 'on lmdb > an answer that breaks off > (truncate) leaves the key in doubt',
  },
  {
    file: MIDDLEWARE,
    without: 'the scope hangs on the secret key',
    text: 'this.scope = scopeOf(merchant.code, key);',
    replacement: 'this.scope = scopeOf(String(req.headers.authorization), key);',
    test: 'test/e2e/idempotency/scope.test.ts',
    named: 'on lmdb, a key > outlives the secret key',
  },
  {
    file: MIDDLEWARE,
    without: 'a merchant who hangs up ends the execution',
    text: 'return this.#options.send(this.#req, mayStart);',
    replacement: `return Promise.race([
      this.#options.send(this.#req, mayStart),
      new Promise<never>((_, reject) => this.gone.addEventListener('abort', () => reject(new Error('gone')))),
    ]);`,
    test: 'test/e2e/idempotency/hang-up-late.test.ts',
    named: 'on lmdb, a merchant who hangs up > is logged once',
  },
  {
    file: CONCLUSION,
    without: 'the answer goes before the settlement',
    text: 'const answer = await Promise.race([settled, late]);',
    replacement: "const answer = 'ok' as Fenced | undefined;",
    test: 'test/unit/engine.test.ts',
    named: 'has begun when it runs, and is settled when it is answered',
  },
  {
    ...WRITES,
    without: 'WAIT goes over another connection than its write',
    text: `pipeline.wait(this.#replicas, this.#waitMs);
      const results = (await pipeline.exec()) ?? [];
      const reached = Number(results[batch.length]?.[1] ?? 0);`,
    replacement: `const results = (await pipeline.exec()) ?? [];
      const elsewhere = (this.#client as import('ioredis').Redis).duplicate();
      await elsewhere.connect();
      const reached = await elsewhere.wait(this.#replicas, this.#waitMs).finally(() => elsewhere.disconnect());`,
    named: 'each write has its WAIT right behind it, over its own connection',
  },
  {
    ...WRITES,
    without: 'a write counts that its replicas do not have',
    text: 'resolve({ reply, replicated: reached >= this.#replicas });',
    replacement: 'resolve({ reply, replicated: reached >= 0 });',
    named: 'a begin that does not reach it must not be followed by a request',
  },
  {
    file: `${STORES}/redis/connect.ts`,
    without: 'ioredis sends a command again after a reconnect',
    text: 'maxRetriesPerRequest: 0,\n  autoResendUnfulfilledCommands: false,',
    replacement: 'maxRetriesPerRequest: 20,\n  autoResendUnfulfilledCommands: true,',
    test: 'test/contract/redis-wire.test.ts',
    named: 'in mid-claim, it is executed once',
  },
  {
    ...LMDB_RECORDS,
    without: 'a record that cannot be read is absent (LMDB)',
    text: 'return { key, version, stamp, record: decodeRecord(record) };',
    replacement: `try {
      return { key, version, stamp, record: decodeRecord(record) };
    } catch {
      return { expired: { key, version } };
    }`,
    named: '(noise, where it was executing) is never absent and never won',
  },
  {
    ...REDIS,
    without: 'a record that cannot be read is absent (Redis)',
    text: 'return { reply: reply && decodeRecord(reply), replicated };',
    replacement: `try {
          return { reply: reply && decodeRecord(reply), replicated };
        } catch {
          return { reply: null, replicated };
        }`,
    named: '(noise, where it was executing) is never absent and never won',
  },
  {
    file: 'src/idempotency/standing.ts',
    without: 'another request under the same key gets the result',
    text: "if (!record.fingerprint.equals(fingerprint)) return { kind: 'mismatch' };",
    replacement: '',
    test: 'test/unit/engine.test.ts',
    named: 'does not stand for another request under its key',
  },
  {
    file: `${STORES}/lmdb/stamp.ts`,
    without: 'a write extends the retention (LMDB)',
    text: 'return { ...stamp, aliveMonotonicMs, aliveWallMs };',
    replacement: 'return now;',
    test: LMDB.test,
    named: 'counts from the first claim, whatever is written later',
  },
  {
    ...REDIS,
    file: `${LUA}/settle.lua`,
    without: 'a write extends the retention (Redis)',
    text: "settled, 'KEEPTTL')",
    replacement: "settled, 'PX', 100000)",
    named: 'a record lives for its retention from the claim, through every write',
  },
  {
    file: ENGINE,
    without: 'a claim that the store did not answer is taken for won',
    text: '            : answerOf(claim);',
    replacement: `            : claim.kind === 'store_unavailable'
              ? ${BEGUN}
              : answerOf(claim);`,
    test: 'test/unit/engine-store-faults.test.ts',
    named: 'at the claim, before it was done, nothing runs',
  },
  {
    file: ENGINE,
    without: 'a begin that the store did not answer is taken for done',
    text: `      this.#conclusion.takeBack(owner);
      return { kind: 'store_unavailable', cause };`,
    replacement: "      return { kind: 'begun', confirmed, again: false };",
    test: 'test/unit/engine-store-faults.test.ts',
    named: 'at the begin, before it was done, nothing runs',
  },
  {
    file: `${STORES}/lmdb/resolver.ts`,
    without: 'a late owner settles what an operator has resolved (LMDB)',
    text: 'token: newToken(), changedAtMs, settlement',
    replacement: 'changedAtMs, settlement',
    test: LMDB.test,
    named: 'settles what is in doubt with a response, under a new token',
  },
  {
    file: 'src/idempotency/own-lease.ts',
    without: 'a request is started although the lease had lapsed',
    text: 'return !this.#lapsed && ageMs < leaseMs;',
    replacement: 'return true;',
    test: 'test/unit/engine-may-start.test.ts',
    named: 'may not after its process stood still for longer than the lease, and never again',
  },
  {
    file: ENGINE,
    without: 'a second request that was not sent frees a key in doubt',
    text: "return again && decision === 'release' ? 'in_doubt' : decision;",
    replacement: 'return decision;',
    test: 'test/unit/engine-retry.test.ts',
    named: 'a second request that was not sent leaves the key in doubt',
  },
  {
    file: ENGINE,
    without: 'a key in doubt is executed again although its operation holds',
    text: "if (call.inDoubt === 'retry') return",
    replacement: 'if (call.inDoubt) return',
    test: 'test/unit/engine-retry.test.ts',
    named: 'a key in doubt is not executed again by an operation that holds',
  },
  {
    file: `${STORES}/lmdb/presence.ts`,
    without: 'a process writes while another one opens the store (LMDB)',
    text: `    while (this.#held) await this.#held.until;
    this.#underWay++;`,
    replacement: '    this.#underWay++;',
    test: 'test/regression/opening-undid-a-commit.test.ts',
    named: 'a process that writes holds back as long as another one opens',
  },
  {
    file: `${STORES}/lmdb/presence.ts`,
    without: 'a store is opened while others may write (LMDB)',
    text: `      await this.#answered(opening, 'listens', endMs);
      this.#put(\`\${opening}.opening\`);
      await this.#answered(opening, 'holds', endMs);`,
    replacement: '      void endMs;',
    test: 'test/regression/opening-undid-a-commit.test.ts',
    named: 'who opens waits for a process that stands still',
  },
  {
    ...REDIS,
    without: 'a settlement that no replica has counts as stored',
    text: `    if (!replicated) throw new StoreUnavailable(\`redis: the \${what} did not reach its replicas\`);`,
    replacement: '',
    test: WRITES.test,
    named: 'is to be settled again until it does',
  },
  {
    file: 'src/gateway.ts',
    without: 'a gateway that ends gives up what the store has not taken',
    text: 'await engine.close(settleMs);',
    replacement: 'await engine.close(0);',
    test: 'test/regression/told-result-was-given-up.test.ts',
    named: 'it stays until the store has them',
  },
];
