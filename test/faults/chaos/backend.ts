import type { ChildProcess } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { TcpProxy } from '../../support/breakable-wire.ts';
import type { LedgerEntry } from './checker.ts';
import type { History } from './history.ts';
import { end, isGone, startNode } from './processes.ts';

const ONCEGATE = fileURLToPath(new URL('../../../src/main.ts', import.meta.url));
const EXIT_WITH_SUITE = fileURLToPath(new URL('./exit-with-suite.ts', import.meta.url));

/** The sandbox in a separate process, behind a proxy that can cut connections; its ledger is on the disk. */
export class Backend {
  /** The wire has an address of its own, so that no other server gets its port while it is down. */
  readonly wire = new TcpProxy(0, '127.0.1.78');
  readonly #folder: string;
  readonly #history: History;
  #process: ChildProcess | undefined;
  #url = '';

  constructor(folder: string, history: History) {
    this.#folder = folder;
    this.#history = history;
  }

  /** Starts it again with the same ledger. */
  async start(): Promise<void> {
    const ledger = join(this.#folder, 'ledger.db');
    const args = ['--import', EXIT_WITH_SUITE, ONCEGATE, 'sandbox', '--port', '0', '--db', ledger];
    this.#process = await startNode(args, {
      isReady: (lines) => {
        const said = lines.find((line) => line.includes('"listening"'));
        if (said) this.#url = JSON.parse(said).url;
        return said !== undefined;
      },
      logFile: join(this.#folder, 'sandbox.log'),
    });
    this.wire.aimAt(Number(new URL(this.#url).port));
    await this.wire.listen();
  }

  /** Sends SIGKILL. Recorded before and after, because the exact moment is unknown. */
  async kill(): Promise<void> {
    this.#lost();
    this.wire.stopListening();
    if (this.#process) await end(this.#process, 'SIGKILL');
    this.#lost();
  }

  /** Resets every connection, idle ones too: the next request may be sent on a closed connection. */
  cut(): void {
    this.#lost();
    this.wire.cut();
  }

  /** Accepts no new connections. Those that the kernel has accepted, and the wire has not, are reset with the requests on them. */
  refuse(): void {
    this.#lost();
    this.wire.stopListening();
  }

  /** Accepts connections again, or, if the process is dead, as soon as it is started. */
  async listen(): Promise<void> {
    if (this.#process && !isGone(this.#process)) await this.wire.listen();
  }

  /** Accepts connections and resets them. */
  reset(on: boolean): void {
    this.#lost();
    this.wire.refuse(on);
  }

  #lost(): void {
    this.#history.add({ event: 'backend_lost', atMs: this.#history.nowMs() });
  }

  /** All payouts in the ledger. */
  async ledger(): Promise<LedgerEntry[]> {
    const answer = await fetch(`${this.#url}/_sandbox/ledger?limit=1000000`);
    return ((await answer.json()) as { transactions: LedgerEntry[] }).transactions;
  }

  async stop(): Promise<void> {
    if (this.#process) await end(this.#process, 'SIGKILL');
    await this.wire.close();
  }
}
