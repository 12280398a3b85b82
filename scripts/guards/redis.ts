import type { Guard } from '../guards.ts';

const AT = 'src/store/redis';
const CONTRACT = 'test/contract/redis.test.ts';
const STORE = { file: `${AT}/redis-store.ts`, test: CONTRACT };
const OPERATORS = { file: `${AT}/operators.ts`, test: CONTRACT };
const REPLICAS = { ...STORE, test: 'test/contract/redis-replicas.test.ts' };
const SETTINGS = 'test/contract/redis-settings.test.ts';
const FORMATS = 'test/contract/formats.test.ts';
const OPEN_INDEX = 'test/contract/redis-open-index.test.ts';
const COMMANDS = { file: `${AT}/commands.ts`, test: REPLICAS.test };

const script = (name: string) => ({ file: `${AT}/scripts/${name}.lua`, test: CONTRACT });
const foreign = (write: string) => `${write}, under a foreign token, where the scope is executing, is stale`;
const VOID = "if ARGV[3] ~= '0' then redis.call('SET', KEYS[3], '1', 'PX', ARGV[3]) end\n";

export const redisGuards: readonly Guard[] = [
  {
    file: `${AT}/health.ts`,
    without: 'a Redis with more replicas than writes wait for gets starts',
    text: '  if (mayLoseOnFailover) return',
    replacement: '  if (mayLoseOnFailover !== undefined || true) return',
    test: SETTINGS,
    named: 'with more replicas than a write waits for gets no start',
  },
  {
    file: `${AT}/health.ts`,
    without: 'a replica that is away, and can be promoted when it is back, does not count',
    text: 'Math.max(known, ...found',
    replacement: 'Math.max(0 * known, ...found',
    test: 'test/contract/redis-topologies.test.ts',
    named: 'counts a replica that is away, until the sentinels are told that it is gone',
  },
  {
    ...STORE,
    without: 'a Redis that evicts records since it runs gets starts',
    text: '    this.#refuseNew();\n    const { scope',
    replacement: '    const { scope',
    test: SETTINGS,
    named: 'refuses starts as soon as it evicts records',
  },
  {
    ...STORE,
    without: 'a Redis that evicts records since it runs gets restarts',
    text: '    this.#refuseNew();\n    const { token',
    replacement: '    const { token',
    test: SETTINGS,
    named: 'refuses starts as soon as it evicts records',
  },
  {
    file: `${AT}/commands.ts`,
    without: 'a write that waited for another one is sent on a new connection',
    text: 'this.#refusal() ?? this.refusalOnOther(connection)',
    replacement: 'this.#refusal()',
    test: 'test/unit/redis-time-limit.test.ts',
    named: 'a write that waited for another one is not sent on a new connection',
  },
  {
    ...STORE,
    without: 'a start that asks the lock nodes goes on with a redis that is empty by then',
    text: '      if (refusal) throw refusal;\n',
    replacement: '',
    test: 'test/contract/redis-lock-nodes.test.ts',
    named: 'a start that asks the lock nodes does not go on',
  },
  {
    ...STORE,
    without: 'a start looks first and writes later (Redis)',
    text: 'const written = this.#commands.write(scripts.start, keys, [...args, dead, openIndex]);',
    replacement: `if ((await this.#client.exists(key)) === 0) {
        await this.#client.set(key, args[0] as Buffer, 'PX', inDoubtRetentionMs);
        return { kind: 'started' };
      }
      const written = this.#commands.write(scripts.start, keys, [...args, dead, openIndex]);`,
    named: 'of many starts on one scope has one winner',
  },
  {
    ...script('start'),
    without: 'a start overwrites the record that it finds (Redis)',
    text: "redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])",
    replacement: "redis.call('SET', KEYS[1], ARGV[1], 'GET', 'PX', ARGV[2])",
    named: 'of a scope that is executing answers in_flight on every node, as a peek does',
  },
  {
    ...script('start'),
    without: 'a start that arrives late executes a completed request again (Redis)',
    text: "local mine = state == 'e' and string.sub",
    replacement: 'local mine = string.sub',
    named: 'sent again when its scope is completed does not start',
  },
  {
    ...script('complete'),
    without: 'a complete does not compare its token (Redis)',
    text: "if string.sub(record, 3, 18) ~= ARGV[1] then return 'stale' end\n",
    replacement: '',
    named: foreign('complete'),
  },
  {
    ...script('release'),
    without: 'a release does not compare its token (Redis)',
    text: "if string.sub(start, 3, 18) ~= ARGV[1] then return 'stale' end\n",
    replacement: '',
    named: foreign('release'),
  },
  {
    ...script('mark-in-doubt'),
    without: 'a markInDoubt does not compare its token (Redis)',
    text: "if string.sub(start, 3, 18) ~= ARGV[1] then return 'stale' end\n",
    replacement: '',
    named: foreign('markInDoubt'),
  },
  {
    ...STORE,
    without: 'a renewal does not compare its token (Redis)',
    text: 'if (!start.subarray(layout.token).equals(owner.token)) {',
    replacement: 'if (start.length === 0) {',
    named: foreign('renew'),
  },
  {
    ...OPERATORS,
    without: 'a resolution does not compare the token that was seen (Redis)',
    text: "if (!record.token.equals(seen) || record.state === 'completed') return 'changed';",
    replacement: "if (record.state === 'completed') return 'changed';",
    named: 'under another token than that of the record answers changed, and writes nothing',
  },
  {
    ...script('resolve'),
    without: 'a resolution does not compare the record with the one that it saw (Redis)',
    text: `if not record or string.sub(record, 1, 19) ~= ARGV[1] then return 'changed' end
local state = stateOf(record)
if state ~= 'e' and state ~= 'd' then return 'changed' end
`,
    replacement: `if not record then return 'changed' end
local state = stateOf(record)
`,
    named: 'a resolution > and a late complete have one winner',
  },
  {
    ...script('restart'),
    without: 'a restart takes the execution of another owner for its own (Redis)',
    text: "if state == 'e' and string.sub(record, 3, 18) == ARGV[1] then",
    replacement: "if state == 'e' then",
    named: 'a restart of a record in doubt > changes nothing where the scope is executing',
  },
  {
    ...script('restart'),
    without: 'a restart takes a record that is not in doubt (Redis)',
    text: "if state ~= 'd' or string.sub(record, 38, 69) ~= ARGV[2] then",
    replacement: 'if string.sub(record, 38, 69) ~= ARGV[2] then',
    named: 'a restart of a record in doubt > changes nothing where the scope is executing',
  },
  {
    ...script('restart'),
    without: 'another request restarts a key in doubt (Redis)',
    text: "if state ~= 'd' or string.sub(record, 38, 69) ~= ARGV[2] then",
    replacement: "if state ~= 'd' then",
    named: 'changes nothing where there is no record, or one with another fingerprint',
  },
  {
    ...script('start'),
    without: 'a voided token starts (Redis)',
    text: "if redis.call('EXISTS', KEYS[3]) == 1 then",
    replacement: 'if false then',
    named: 'does not start when its start arrives after its release',
  },
  {
    ...script('restart'),
    without: 'a voided token restarts (Redis)',
    text: "if redis.call('EXISTS', KEYS[3]) == 1 then",
    replacement: 'if false then',
    named: 'does not restart when its restart arrives after its markInDoubt',
  },
  {
    ...script('release'),
    without: 'a release does not void its token (Redis)',
    text: VOID,
    replacement: '',
    named: 'does not start when its start arrives after its release',
  },
  {
    ...script('mark-in-doubt'),
    without: 'a markInDoubt does not void its token (Redis)',
    text: VOID,
    replacement: '',
    named: 'does not restart when its restart arrives after its markInDoubt',
  },
  {
    ...script('start'),
    without: 'the key of a dead owner is executed again (Redis)',
    text: `local flags = string.byte(record, 19)
redis.call('SETRANGE', KEYS[1], 1, 'd')`,
    replacement: `redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if state then return false end
local flags = string.byte(record, 19)
redis.call('SETRANGE', KEYS[1], 1, 'd')`,
    named: 'a start after the lease is over marks the scope in doubt, and it stays in doubt',
  },
  {
    ...script('start'),
    without: 'an owner that renews its lease counts as dead (Redis)',
    text: "elseif redis.call('EXISTS', KEYS[2]) == 1 then",
    replacement: 'elseif false then',
    named: 'a start answers in_flight as long as the owner renews',
  },
  {
    ...script('peek'),
    without: 'a peek takes an owner that renews its lease for dead (Redis)',
    text: "if ARGV[2] == '1' and redis.call('EXISTS', KEYS[2]) == 1 then return 1 end\n",
    replacement: '',
    named: 'a start answers in_flight as long as the owner renews',
  },
  {
    ...script('start'),
    without: 'an owner that loses its lease early counts as dead at once (Redis)',
    text: 'if age < struct.unpack(',
    replacement: 'if 0 > struct.unpack(',
    named: 'an execution that lost its lease early is in flight until it is older than its lease',
  },
  {
    file: `${AT}/lease.ts`,
    without: 'an owner counts as dead while its lock nodes do not answer (Redis)',
    text: 'node.exists(name).catch(() => 1)',
    replacement: 'node.exists(name).catch(() => 0)',
    test: 'test/contract/redis-lock-nodes.test.ts',
    named: 'no owner counts as dead while most lock nodes are down',
  },
  {
    ...STORE,
    without: 'a lease that was lost and taken again leaves no trace (Redis)',
    text: 'await this.#commands.run(scripts.markLapsed, [this.#keyOf(owner.scope)], [owner.token]);',
    replacement: '',
    named: 'a renewal after the lease is over takes the lease again and answers lost',
  },
  {
    ...STORE,
    without: 'a key in doubt expires with the retention (Redis)',
    text: `      this.#encode(execution),
      inDoubtRetentionMs,`,
    replacement: `      this.#encode(execution),
      this.#options.lifetimes.retentionMs,`,
    named: 'of a record that is executing or in doubt is inDoubtRetentionMs, longer than that of a result',
  },
  {
    ...script('complete'),
    without: 'a complete extends the retention (Redis)',
    text: "local lifeMs = struct.unpack('>I6', record, 26) - age",
    replacement: "local lifeMs = struct.unpack('>I6', record, 26)",
    named: 'of a record that was never in doubt counts from the start, not from the complete',
  },
  {
    ...script('complete'),
    without: 'a key that was in doubt is kept no longer than others (Redis)',
    text: "if state == 'd' or flags % 2 == 1 or lapsed",
    replacement: "if state == 'd' or lapsed",
    named: 'is inDoubtRetentionMs again after a complete after a restart',
  },
  {
    ...script('complete'),
    without: 'a complete after the lease has lapsed does not count as doubtful (Redis)',
    text: 'flags % 2 == 1 or lapsed or',
    replacement: 'flags % 2 == 1 or',
    named: 'a complete after the lease is over counts as having been in doubt, even if no start marked it',
  },
  {
    ...script('complete'),
    without: 'a complete that finds no record is lost (Redis)',
    text: "  redis.call('SET', KEYS[1], ARGV[7], 'PX', ARGV[8])\n  return 'ok'",
    replacement: "  return 'stale'",
    named: 'that completes an absent scope creates the whole record, as one that was in doubt',
  },
  {
    ...script('resolve'),
    without: 'a late complete overwrites a resolution (Redis)',
    text: "ARGV[3] .. ARGV[4] .. '\\1'",
    replacement: "ARGV[3] .. string.sub(record, 3, 18) .. '\\1'",
    named: 'completes a record in doubt with a response, under a new token',
  },
  {
    ...script('resolve'),
    without: 'a key is resolved while its owner holds a lease (Redis)',
    text: "if not gaveUp and ARGV[2] == '1' and redis.call('EXISTS', KEYS[2]) == 1 then return 'alive' end\n",
    replacement: '',
    named: 'answers alive while an owner that had counted as dead renews again',
  },
  {
    ...script('resolve'),
    without: 'a key is resolved although its owner is younger than a lease (Redis)',
    text: "if state == 'e' and inDoubtRetentionMs",
    replacement: "if state == 'x' and inDoubtRetentionMs",
    named: 'an execution that lost its lease early is in flight until it is older than its lease',
  },
  {
    ...STORE,
    without: 'a record that cannot be read is absent (Redis)',
    text: 'if (reply === null) {',
    replacement: `const isReadable = (): boolean => {
        try {
          return decodeRecord(reply as Buffer) !== undefined;
        } catch {
          return false;
        }
      };
      if (reply === null || (reply instanceof Buffer && !isReadable())) {`,
    named: '(noise, where it was executing) is never treated as absent and never taken over',
  },
  {
    ...script('complete'),
    without: 'a script changes a record that it cannot read (Redis)',
    text: "if record and not state then return redis.error_reply('UNREADABLE the record has another format') end\n",
    replacement: '',
    named: 'the owner of a record in another format is not answered stale',
  },
  {
    ...STORE,
    without: 'another request under the same key gets the result (Redis)',
    text: "if (!record.fingerprint.equals(fingerprint)) return { answer: { kind: 'mismatch' } };",
    replacement: '',
    named: 'with another fingerprint, of a scope that is completed, answers mismatch, as a peek does',
  },
  {
    ...COMMANDS,
    without: 'WAIT goes over another connection than its write',
    text: 'const replicated = this.client.wait(this.#replicas, this.#waitMs).then(',
    replacement: `const elsewhere = (this.client as Redis).duplicate();
    const waited = elsewhere.connect().then(() => elsewhere.wait(this.#replicas, this.#waitMs));
    const replicated = waited.finally(() => elsewhere.disconnect()).then(`,
    named: 'each write is followed by its WAIT on the same connection',
  },
  {
    ...COMMANDS,
    without: 'the number of replicas that WAIT has counted does not matter',
    text: '(reached) => Number(reached) >= this.#replicas,',
    replacement: '(reached) => Number(reached) >= 0,',
    named: 'a start that it does not acknowledge fails, and can be released',
  },
  {
    ...REPLICAS,
    without: 'a start that no replica has counts as done',
    text: "if (written.replicated && !(await written.replicated)) throw notReplicated('start');",
    replacement: '',
    named: 'a start that it does not acknowledge fails, and can be released',
  },
  {
    ...REPLICAS,
    without: 'a restart that no replica has counts as done',
    text: "if (written.replicated && !(await written.replicated)) throw notReplicated('restart');",
    replacement: '',
    named: 'a restart that it does not acknowledge fails',
  },
  {
    ...REPLICAS,
    without: 'a start replays a result that no replica has',
    text: `if (answer.kind === 'completed' || answer.kind === 'tombstone') {
        if (written.replicated && !(await written.replicated)) throw notReplicated('replayed record');
      }`,
    replacement: '',
    named: 'a start replays nothing that a failover could lose',
  },
  {
    ...REPLICAS,
    without: 'a peek replays a result that no replica has',
    text: `if (wordOf(await written.reply) !== 'ok') continue;
      if (written.replicated && !(await written.replicated)) throw notReplicated('replayed record');`,
    replacement: "if (wordOf(await written.reply) !== 'ok') continue;",
    named: 'a peek replays nothing that a failover could lose',
  },
  {
    ...script('start'),
    without: 'the WAIT of a start that replays does not cover the record',
    text: "if ARGV[5] == '1' then redis.call('SETRANGE', KEYS[1], 1, state) end",
    replacement: '',
    test: REPLICAS.test,
    named:
      'a start writes the record that it replays, because WAIT may cover only the writes of its connection',
  },
  {
    ...script('confirm'),
    without: 'the WAIT of a peek that replays does not cover the record',
    text: "redis.call('SETRANGE', KEYS[1], 1, string.sub(ARGV[1], 2, 2))\n",
    replacement: '',
    test: REPLICAS.test,
    named:
      'a peek writes the record that it replays, because WAIT may cover only the writes of its connection',
  },
  {
    ...REPLICAS,
    without: 'a complete that no replica has counts as stored',
    text: "      throw notReplicated('completion');",
    replacement: '',
    named: 'a complete that it does not acknowledge is counted, and fails until it does',
  },
  {
    ...REPLICAS,
    without: 'a release that no replica has counts as done',
    text: "if (written.replicated && !(await written.replicated)) throw notReplicated('release');",
    replacement: '',
    named: 'a release that it does not acknowledge fails',
  },
  {
    ...OPERATORS,
    without: 'a resolution that no replica has counts as done',
    text: `if (resolved === 'ok' && written.replicated && !(await written.replicated))
      throw notReplicated('resolution');`,
    replacement: '',
    test: REPLICAS.test,
    named: 'a resolution that it does not acknowledge fails',
  },
  {
    file: `${AT}/client.ts`,
    without: 'ioredis sends a command again after a reconnect',
    text: 'maxRetriesPerRequest: 0,\n  autoResendUnfulfilledCommands: false,',
    replacement: 'maxRetriesPerRequest: 20,\n  autoResendUnfulfilledCommands: true,',
    test: 'test/contract/redis-wire.test.ts',
    named: 'during a start, the script is executed once',
  },
  {
    ...COMMANDS,
    without: 'a command whose reply was lost counts as never sent',
    text: 'maybeWritten: !NEVER_SENT.has(message),',
    replacement: 'maybeWritten: false,',
    test: 'test/contract/redis-wire.test.ts',
    named: 'during a start, the script is executed once',
  },
  {
    ...script('complete'),
    without: 'a Redis that is out of memory refuses to store a response',
    text: '#!lua flags=allow-oom',
    replacement: '#!lua',
    test: 'test/contract/redis-faults.test.ts',
    named: 'because it is out of memory, results, releases and doubts are still stored',
  },
  ...(['ZADD', 'ZREM'] as const).map((command) => ({
    ...script('record'),
    without: `an index of open records that cannot be written makes a payout fail (${command})`,
    text: `redis.pcall('${command}'`,
    replacement: `redis.call('${command}'`,
    test: OPEN_INDEX,
    named: 'does not change what the store answers when it is a key of another type',
  })),
  {
    ...script('resolve'),
    without: 'a resolution that cannot be counted is left half done',
    text: "redis.pcall('HINCRBY'",
    replacement: "redis.call('HINCRBY'",
    test: OPEN_INDEX,
    named: 'does not change what the store answers when it is a key of another type',
  },
  {
    ...script('start'),
    without: 'no count of the keys in doubt finds what a dead gateway has started (Redis)',
    text: '  addOpen(ARGV[7], KEYS[1])\n',
    replacement: '',
    named: 'has those in doubt and those of dead owners by operation',
  },
  ...(['complete', 'release', 'resolve'] as const).map((name) => ({
    ...script(name),
    without: `the index of open records grows without end (${name})`,
    text: `\nremoveOpen(ARGV[${name === 'release' ? 4 : 9}], KEYS[1])`,
    replacement: '',
    test: OPEN_INDEX,
    named: 'has the scopes whose records are executing or in doubt',
  })),
  {
    ...script('count-open'),
    without: 'living owners count as in doubt (Redis)',
    text: "elseif redis.call('EXISTS', key .. ':lease') == 0 then",
    replacement: 'else',
    named: 'has those in doubt and those of dead owners by operation',
  },
  {
    ...script('correct-index'),
    without: 'expired records stay in the index of open records',
    text: "  redis.call('ZREM', KEYS[2], scope)\n",
    replacement: '',
    test: OPEN_INDEX,
    named: 'loses expired records with the next count',
  },
  {
    file: `${AT}/doubt-counter.ts`,
    without: 'keys in doubt that the index in Redis has lost are not counted',
    text: 'if (hasTurn) void this.#addMissing(signal)',
    replacement: 'if (false) void this.#addMissing(signal)',
    test: OPEN_INDEX,
    named: 'gets the records that it lacks',
  },
  {
    file: `${AT}/store-format.ts`,
    without: 'records of another format in Redis are absent',
    text: '  if (noted !== null) return refuseOtherFormat(prefix, noted);\n',
    replacement: '  if (noted !== null) return;\n',
    test: FORMATS,
    named: 'whose note says 3 is refused',
  },
  {
    file: `${AT}/store-format.ts`,
    without: 'two versions that start at the same moment write records of two formats to Redis',
    text: '  if (meanwhile !== null) refuseOtherFormat(prefix, meanwhile);\n',
    replacement: '',
    test: FORMATS,
    named: 'gets one format, also if a gateway of another version starts at the same moment',
  },
  {
    file: `${AT}/copy-side.ts`,
    without: 'a copy from a Redis of another format finds nothing to copy, and opens the destination',
    text: '      await whileUnanswered(() => requireFormat(side.#client, prefix), clock, untilMs);\n',
    replacement: '',
    test: FORMATS,
    named: 'whose note says 3 is refused',
  },
];
