import type { Guard } from './guard.ts';

const CIPHER = 'src/store/response-cipher.ts';
const LEDGER = 'src/ledger/ledger.ts';

/** What the ledger adds to the rules. */
export const ledgerGuards: readonly Guard[] = [
  [
    'an event counts as written although the store holds something else',
    [LEDGER, '#apply', 'reply.done', 'true'],
    ['engine/waiting', 'hold no slot while they wait for an execution in another process'],
  ],
  [
    'a complete whose write never arrived takes itself for done when it is repeated',
    [LEDGER, '#applyOwn', 'guess, rule, same', 'guess, rule, same, owner'],
    ['unit/ledger', 'a write that is repeated > is written if it never arrived'],
  ],
  [
    'a resolution whose reply was lost counts as not written',
    [LEDGER, '#apply', 'starter && !isOwn', '!isOwn'],
    ['unit/ledger', 'says that a resolution may be written if its reply is lost'],
  ],
  [
    'a restart that is taken back frees a key in doubt',
    [LEDGER, 'takeBack', 'before ?', 'before === null ?'],
    ['engine/retry', 'a restart that is pending when the engine closes releases nothing'],
  ],
  [
    'a result is kept for a day although its owner may have counted as dead',
    [LEDGER, '#guess', '!mayHaveLapsed && this.#isAlive(memory)', 'true'],
    ['unit/ledger', 'an owner > that completes too late leaves a result that was in doubt'],
  ],
  [
    'an owner that was replaced keeps the record of another dead owner in flight',
    [LEDGER, 'renew', 'seen?.record.token.equals(token)', 'seen'],
    ['unit/ledger', 'an owner > that was replaced renews nothing'],
  ],
  [
    'a start goes on with a store that is another one by then, or was emptied',
    [LEDGER, 'start', 'this.connectionOf(recordId) !== connection', 'false'],
    [
      'contract/redis-lock-nodes',
      'a start that asks the lock nodes does not go on when its redis was replaced',
    ],
  ],
  [
    'an owner counts as dead although the lock nodes have its lease',
    ['src/ledger/reader.ts', 'askNodes', 'rules.needsLease(seen)', 'false'],
    ['contract/redis-lock-nodes', 'no owner counts as dead while most lock nodes are down'],
  ],
];

export const cipherGuards: readonly Guard[] = [
  [
    'a stored response can be moved to another record',
    [CIPHER, 'boundTo', '{recordId}', '{recordId.length}'],
    ['unit/encryption', 'an encrypted response that was replaced by another one is not read'],
  ],
  [
    'a response whose encryption key is unknown is answered without its body',
    [CIPHER, '#plainOf', 'if (!key) throw', 'if (!key) return { status, headers: [], body: bytes } || '],
    ['unit/encryption', 'under an unknown key is never treated as absent'],
  ],
];
