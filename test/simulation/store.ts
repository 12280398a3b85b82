import type { RecordId, Token } from '../../src/lib/brands.ts';
import type { AuditRecord } from '../../src/store/doubts.ts';
import type {
  CopyProgress,
  CopyRegister,
  Create,
  FoundProgress,
  Register,
  Replace,
  Reply,
  Scanned,
  Seen,
} from '../../src/store/register.ts';
import { StoreUnavailable } from '../../src/store/types.ts';
import { MemoryRegister } from '../support/memory-register.ts';
import type { Dice } from './dice.ts';
import type { Process } from './machine.ts';
import type { Timeline } from './timeline.ts';
import { NetworkTransactions } from './transactions.ts';

/** What a command does to the register of whichever server executes it. */
type Command<T> = (register: MemoryRegister) => Promise<T>;

interface Logged {
  atMs: number;
  command: Command<unknown>;
}

/** A server of the store. Its register is that of its master, as far as it has followed the master's writes. */
export class Server {
  register: MemoryRegister;
  isMaster = false;
  isDown = false;
  /** The server's own writes, since it became a master. */
  log: Logged[] = [];
  /** Whose writes it follows, and how many of them it has. */
  follows: Server | undefined;
  /** What it follows has become another server's replica, or a master again: it gets nothing more until it is copied anew. */
  isCutOff = false;
  followed = 0;
  wallAheadMs = 0;
  full: { untilMs: number; refuses: 'creates' | 'writes'; isKnown: boolean } | undefined;
  readonly #timeline: Timeline;
  #executedAtMs: number | undefined;
  readonly #waiting: { written: number; replicas: number; resolve: () => void }[] = [];

  constructor(timeline: Timeline, Registers: typeof MemoryRegister, id: string) {
    this.#timeline = timeline;
    this.register = new Registers(() => this.#executedAtMs ?? this.nowMs, id);
  }

  get nowMs(): number {
    return this.#timeline.nowMs + this.wallAheadMs;
  }

  /** Executes a write, and lets its replicas follow. */
  async write<T>(command: Command<T>, replicas: readonly Server[], delayMs: () => number): Promise<T> {
    if (replicas.length > 0) {
      const { log } = this;
      const written = log.push({ atMs: this.nowMs, command });
      for (const replica of replicas)
        this.#timeline.after(delayMs(), () => {
          if (replica.follows === this && this.log === log && !replica.isDown) replica.#follow(written);
        });
    }
    return await command(this.register);
  }

  /** Resolves when so many replicas have all writes of this moment. It may never do. */
  waitFor(replicas: number, all: readonly Server[]): Promise<void> {
    if (replicas === 0) return Promise.resolve();
    return new Promise((resolve) => {
      this.#waiting.push({ written: this.log.length, replicas, resolve });
      this.acknowledge(all);
    });
  }

  acknowledge(all: readonly Server[]): void {
    for (const waiting of [...this.#waiting]) {
      const have = replicasOf(this, all).filter(({ followed }) => followed >= waiting.written);
      if (have.length < waiting.replicas) continue;
      this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
      waiting.resolve();
    }
  }

  /** Becomes a copy of a master. */
  copy(master: Server): void {
    this.isMaster = false;
    // Whoever waits for replicas of a master that becomes a replica itself gets no answer.
    this.#waiting.length = 0;
    this.follows = master;
    this.isCutOff = false;
    this.followed = master.log.length;
    this.register = master.register.clone(() => this.#executedAtMs ?? this.nowMs);
  }

  get refuses(): 'creates' | 'writes' | undefined {
    return this.full && this.#timeline.nowMs < this.full.untilMs ? this.full.refuses : undefined;
  }

  /** What was written since is gone, the replicas' too. */
  restore(backup: MemoryRegister): void {
    this.log = [];
    this.followed = 0;
    this.register = backup.clone(() => this.#executedAtMs ?? this.nowMs);
  }

  promote(): void {
    this.follows = undefined;
    this.isMaster = true;
    this.log = [];
  }

  onFollowed: () => void = () => {};

  #follow(until: number): void {
    const { follows } = this;
    if (!follows || this.isCutOff) return;
    for (; this.followed < until; this.followed++) {
      const { atMs, command } = follows.log[this.followed] as Logged;
      // A replica takes over what its master has done, so times are the master's.
      this.#executedAtMs = atMs;
      void command(this.register).catch(() => {});
      this.#executedAtMs = undefined;
    }
    this.onFollowed();
  }
}

const replicasOf = (master: Server, all: readonly Server[]): Server[] =>
  all.filter(({ follows, isCutOff }) => follows === master && !isCutOff);

export interface StorePlan {
  /** Servers that follow the master. */
  replicas: number;
  /** How many of them must have a write before it is answered. */
  acknowledgedBy: number;
  /** Lock nodes hold the leases, and a write does not ask them. */
  lockNodes: boolean;
}

/** The servers of a store. Which one of them is the master is known to each gateway by itself. */
export class StoreServers {
  readonly servers: Server[];
  readonly plan: StorePlan;
  readonly id: string;
  readonly #timeline: Timeline;
  readonly #dice: Dice;
  readonly #masters = new Map<string, Server>();
  #backup: MemoryRegister | undefined;

  /** @param id of the store, 32 hexadecimal digits */
  constructor(timeline: Timeline, plan: StorePlan, dice: Dice, id: string, Registers = MemoryRegister) {
    this.#timeline = timeline;
    this.plan = plan;
    this.id = id;
    this.#dice = dice;
    this.servers = Array.from({ length: 1 + plan.replicas }, () => new Server(timeline, Registers, id));
    const [master] = this.servers as [Server];
    master.isMaster = true;
    for (const server of this.servers) {
      server.onFollowed = () => server.follows?.acknowledge(this.servers);
      if (server !== master) server.copy(master);
    }
  }

  /** The one that was promoted last. */
  get master(): Server {
    return this.servers.find(({ isMaster }) => isMaster) as Server;
  }

  backUp(): void {
    this.#backup = this.master.register.clone(() => this.#timeline.nowMs);
  }

  restore(): void {
    const backup = this.#backup ?? new MemoryRegister(() => this.#timeline.nowMs, this.id);
    for (const server of this.servers) server.restore(backup);
  }

  masterOf(process: Process): Server {
    return this.#masters.get(process.name) ?? (this.servers[0] as Server);
  }

  replicasOf(master: Server): Server[] {
    return replicasOf(master, this.servers);
  }

  delayMs(): number {
    return this.#dice.next() ** 4 * 400;
  }

  /** Promotes a replica. The others and the gateways learn of it one by one; the old master serves some of them meanwhile. */
  failOver(processes: readonly Process[]): void {
    const old = this.master;
    const candidates = this.replicasOf(old).filter(({ isDown }) => !isDown);
    if (candidates.length === 0) return;
    const next = this.#dice.pick(candidates);
    const others = this.servers.filter((server) => server !== next);
    this.#cutOff(next);
    next.promote();
    const wasKilled = this.#dice.chance(0.5);
    old.isDown = wasKilled;
    old.isMaster = false;
    for (const process of processes) {
      if (!this.#masters.has(process.name)) this.#masters.set(process.name, old);
      this.#timeline.after(this.#dice.next() * 8000, () => this.#masters.set(process.name, this.master));
    }
    for (const server of others)
      this.#timeline.after(500 + this.#dice.next() * 12_000, () => {
        server.isDown = false;
        const { master } = this;
        if (server === master) return;
        this.#cutOff(server);
        server.copy(master);
        master.acknowledge(this.servers);
      });
  }

  /** The replicas of this server, which begins another history of writes. */
  #cutOff(server: Server): void {
    for (const replica of this.replicasOf(server)) replica.isCutOff = true;
  }

  /** A gateway that starts asks who the master is. */
  join(process: Process): void {
    this.#masters.set(process.name, this.master);
  }
}

/** What may happen to commands between a gateway and the store. */
export interface Network {
  /** Share of the commands that are refused, lost, executed late or twice, or whose reply is lost. */
  faults: number;
  /** Until when nothing passes, in each direction. */
  requestsLostUntilMs: number;
  repliesLostUntilMs: number;
}

const FULL = 'the store is full';
/** A command is executed at most so late. A voided token stays void for longer. */
const LATEST_MS = 3_000_000;
const COMMAND_TIMEOUT_MS = 2000;

/** A gateway's connection to the store. */
export class NetworkRegister implements Register, CopyRegister {
  readonly replicates: boolean;
  readonly isLeased?: (id: RecordId) => Promise<boolean>;
  readonly transactions: NetworkTransactions;
  readonly #process: Process;
  readonly #store: StoreServers;
  readonly #network: Network;
  readonly #timeline: Timeline;
  readonly #dice: Dice;
  readonly #step: (where: string) => void;

  constructor(
    process: Process,
    store: StoreServers,
    network: Network,
    timeline: Timeline,
    dice: Dice,
    step: (where: string) => void,
  ) {
    this.#process = process;
    this.#store = store;
    this.#network = network;
    this.#timeline = timeline;
    this.#dice = dice;
    this.#step = step;
    this.replicates = store.plan.acknowledgedBy > 0;
    this.transactions = new NetworkTransactions({
      ...{ process, timeline },
      send: (name, execute) => this.#send(name, execute),
    });
    if (store.plan.lockNodes)
      // A node that does not answer counts as having the lease.
      this.isLeased = (id) =>
        this.#read(async (register) => (await register.read(id))?.isLeased === true).catch(() => true);
  }

  get refusing(): string | undefined {
    const { refuses, full } = this.#store.masterOf(this.#process);
    return refuses && full?.isKnown ? FULL : undefined;
  }

  create(id: RecordId, write: Create): Promise<Reply> {
    return this.#write('create', async (register) => this.#unasked(await register.create(id, write)));
  }

  replace(id: RecordId, write: Replace): Promise<Reply> {
    // Lock nodes cannot be asked within a write.
    const asked = this.#store.plan.lockNodes ? { ...write, unlessLeased: false } : write;
    const command: Command<Reply> = async (register) => this.#unasked(await register.replace(id, asked));
    return this.#write(write.record?.state ?? 'remove', command, write.mayBeLost);
  }

  read(id: RecordId, mustLast = false): Promise<Seen | undefined> {
    return this.#read(async (register) => {
      const seen = await register.read(id);
      return seen && this.#store.plan.lockNodes ? { ...seen, isLeased: undefined } : seen;
    }, mustLast);
  }

  renew(id: RecordId, token: Token, leaseMs: number): Promise<'kept' | 'taken' | 'lost'> {
    return this.#write('renew', (register) => register.renew(id, token, leaseMs), true);
  }

  endLease(id: RecordId, token: Token): Promise<void> {
    return this.#write('end lease', (register) => register.endLease(id, token), true);
  }

  idsOf(digits: string): ReturnType<Register['idsOf']> {
    return this.#read((register) => register.idsOf(digits));
  }

  list(...query: Parameters<Register['list']>): ReturnType<Register['list']> {
    return this.#read((register) => register.list(...query));
  }

  countOpen(...options: Parameters<Register['countOpen']>): ReturnType<Register['countOpen']> {
    return this.#read((register) => register.countOpen(...options));
  }

  audit(id: RecordId): ReturnType<Register['audit']> {
    return this.#read((register) => register.audit(id));
  }

  readIdentity(...mode: Parameters<Register['readIdentity']>): ReturnType<Register['readIdentity']> {
    return this.#read((register) => register.readIdentity(...mode));
  }

  visit(...mode: Parameters<Register['visit']>): ReturnType<Register['visit']> {
    return this.#write('visit', (register) => register.visit(...mode));
  }

  get register(): Register {
    return this;
  }

  readCopyProgress(): Promise<FoundProgress | undefined> {
    return this.#read((register) => register.readCopyProgress());
  }

  changeCopyProgress(to: CopyProgress): Promise<boolean> {
    return this.#write('copy progress', (register) => register.changeCopyProgress(to));
  }

  servers(): Promise<string> {
    return this.#send('servers', async (server) => `${this.#store.servers.indexOf(server)}`);
  }

  async *scan(): AsyncIterable<Scanned[]> {
    const pages = await this.#read(async (register) => {
      const found: Scanned[][] = [];
      for await (const page of register.scan()) found.push(page);
      return found;
    });
    yield* pages;
  }

  putAudit(id: RecordId, audit: readonly AuditRecord[]): Promise<void> {
    return this.#write('audit', (register) => register.putAudit(id, audit));
  }

  health = async () => ({ ok: true, detail: 'memory', warnings: [] });
  close = async () => {};

  #unasked(reply: Reply): Reply {
    if (reply.done || !reply.held || !this.#store.plan.lockNodes) return reply;
    return { done: false, held: { ...reply.held, isLeased: undefined } };
  }

  #read<T>(command: Command<T>, mustLast = false): Promise<T> {
    const execute = async (server: Server) => {
      const answer = await command(server.register);
      if (mustLast) await server.waitFor(this.#store.plan.acknowledgedBy, this.#store.servers);
      return answer;
    };
    return this.#send('read', execute);
  }

  #write<T>(name: string, command: Command<T>, mayBeLost = false): Promise<T> {
    const execute = async (server: Server) => {
      const replicas = this.#store.replicasOf(server);
      const { refuses } = server;
      if (refuses === 'writes' || (refuses && name === 'create'))
        throw new StoreUnavailable(FULL, { maybeWritten: refuses === 'writes' });
      const answer = await server.write(command, replicas, () => this.#store.delayMs());
      if (!mayBeLost) await server.waitFor(this.#store.plan.acknowledgedBy, this.#store.servers);
      return answer;
    };
    return this.#send(name, execute);
  }

  #send<T>(name: string, execute: (server: Server) => Promise<T>): Promise<T> {
    const [timeline, process, dice, network] = [this.#timeline, this.#process, this.#dice, this.#network];
    const server = this.#store.masterOf(process);
    const fate = dice.next() < network.faults ? dice.pick(FATES) : 'ok';
    return new Promise((resolve, reject) => {
      let isOver = false;
      const cancel = process.clock.after(COMMAND_TIMEOUT_MS, () => {
        isOver = true;
        reject(new StoreUnavailable('no reply'));
      });
      const reply = (settle: () => void) => {
        if (fate === 'reply lost' || fate === 'twice' || timeline.nowMs < network.repliesLostUntilMs) return;
        timeline.after(dice.next() ** 2 * 4, () => {
          this.#step(`${name} answered`);
          process.machine.run(process, () => {
            if (isOver) return;
            isOver = true;
            cancel();
            settle();
          });
        });
      };
      const arrive = () => {
        if (server.isDown) return;
        if (!server.isMaster && server.follows) {
          reply(() => reject(new StoreUnavailable('it is a replica', { maybeWritten: false })));
          return;
        }
        execute(server).then(
          (answer) => reply(() => resolve(answer)),
          (error) => reply(() => reject(error)),
        );
      };
      const ways = fate === 'twice' ? 2 : Number(fate !== 'request lost');
      if (fate === 'refused') {
        reply(() => reject(new StoreUnavailable('refused', { maybeWritten: false })));
        return;
      }
      for (let way = 0; way < ways; way++) {
        const late = fate === 'late' || way > 0 ? dice.next() ** 8 * LATEST_MS : 0;
        if (late === 0 && timeline.nowMs < network.requestsLostUntilMs) continue;
        timeline.after(0.1 + dice.next() ** 2 * 4 + late, arrive);
      }
      this.#step(`${name} sent`);
    });
  }
}

/** A command that arrives twice is one that a client sends again, so the first reply was lost. */
const FATES = ['refused', 'request lost', 'reply lost', 'late', 'twice'] as const;
