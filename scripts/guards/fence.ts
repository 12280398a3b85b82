import type { Guard } from '../guards.ts';

const LEASE = 'src/idempotency/lease.ts';
const EXECUTION = 'src/idempotency/execution.ts';
const UNIT = 'test/engine/fence.test.ts';
const PAUSED = 'test/e2e/idempotency/paused-gateway.test.ts';

const BOTH_CLOCKS =
  'return () => clock.monotonicMs() - monotonicMs < leaseMs && clock.wallMs() - wallMs < leaseMs;';

/** The whole fence. */
const fence = { file: LEASE, text: BOTH_CLOCKS, replacement: 'return () => true;', test: PAUSED };

/** The fence at the first byte; the one before a connection is opened is still there. */
const atTheFirstByte = {
  file: 'src/backend/executor.ts',
  text: 'if (!this.#rules.maySend()) {',
  replacement: 'if (this.#ended) {',
  test: PAUSED,
};

/** The last-moment fence: an owner that was paused sends nothing once its key may belong to another request. */
export const fenceGuards: readonly Guard[] = [
  {
    file: 'src/doubts/desk.ts',
    test: 'test/e2e/records/admin-port.test.ts',
    without: 'an operator resolves an execution that they have not looked at',
    text: 'if (request.execution !== executionOf(record))',
    replacement: 'if (request.execution === undefined)',
    named: 'records on the admin port > are not resolved if they belong to another execution',
  },
  {
    ...fence,
    without: 'a paused owner sends a request whose key an operator has released',
    named:
      'a gateway that is paused between its start and the first byte (after_start) > sends nothing once an operator',
  },
  {
    ...fence,
    without: 'a paused owner sends a request whose key a lookup has released',
    named:
      'a gateway that is paused between its start and the first byte (after_start) > sends nothing once a lookup',
  },
  {
    ...fence,
    without: 'a paused owner sends a request whose key the policy retry has restarted',
    named:
      'a gateway that is paused between its start and the first byte (after_start) > sends nothing once the policy retry',
  },
  {
    ...atTheFirstByte,
    without: 'an owner paused while it connected sends a request whose key an operator has released',
    named:
      'a gateway that is paused between its start and the first byte (before_connect) > sends nothing once an operator',
  },
  {
    ...atTheFirstByte,
    without: 'an owner paused while it connected sends a request whose key a lookup has released',
    named:
      'a gateway that is paused between its start and the first byte (before_connect) > sends nothing once a lookup',
  },
  {
    ...atTheFirstByte,
    without: 'an owner paused while it connected sends a request whose key the policy retry has restarted',
    named:
      'a gateway that is paused between its start and the first byte (before_connect) > sends nothing once the policy retry',
  },
  {
    file: EXECUTION,
    without: 'a renewal extends the fence',
    text: `    const stopRenewing = this.#renewals.keep(call, execution);
    try {
      let exchange: Exchange;
      try {
        exchange = await call.run(maySend);`,
    replacement: `    let fence = maySend;
    const store = {
      renew: async (owner) => {
        const renewed = await this.#store.renew(owner);
        fence = fenceFrom(this.#clock, this.#leaseMs);
        return renewed;
      },
    } as Store;
    const renewals = new Renewals(store, this.#leaseMs, this.#observer, this.#clock);
    const stopRenewing = renewals.keep(call, execution);
    try {
      let exchange: Exchange;
      try {
        exchange = await call.run(() => fence());`,
    test: UNIT,
    named: 'may send for one lease after its start, and not later, even if it renews',
  },
  {
    file: LEASE,
    without: 'the fence does not count the time in which the machine was suspended',
    text: BOTH_CLOCKS,
    replacement: 'return () => clock.monotonicMs() - monotonicMs < leaseMs || wallMs < 0;',
    test: UNIT,
    named: 'may not send once wallMs alone has passed a lease',
  },
  {
    file: LEASE,
    without: 'the fence does not count while the wall clock is set back',
    text: BOTH_CLOCKS,
    replacement: 'return () => clock.wallMs() - wallMs < leaseMs || monotonicMs < 0;',
    test: UNIT,
    named: 'may not send once monotonicMs alone has passed a lease',
  },
  {
    file: EXECUTION,
    without: 'the fence counts from the answer to the start',
    text: "return { kind: 'started', execution, slot, maySend, again: false };",
    replacement: `const afterwards = fenceFrom(this.#clock, this.#leaseMs);
        return { kind: 'started', execution, slot, maySend: afterwards, again: false };`,
    test: UNIT,
    named:
      'may not send if its start took longer than the lease, because the fence counts from before the start',
  },
  {
    file: EXECUTION,
    without: 'a restarted execution has no fence',
    text: "return { kind: 'started', execution, slot, maySend, again: true };",
    replacement: "return { kind: 'started', execution, slot, maySend: () => true, again: true };",
    test: UNIT,
    named: 'after a restart may not send once monotonicMs has passed a lease',
  },
];
