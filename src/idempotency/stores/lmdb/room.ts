import { statfsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { StoreUnavailable } from '../../store.ts';

const LOOK_EVERY_MS = 1000;
const MIB = 1024 * 1024;

/**
 * Whether the disk has room for more than the end of what has begun. That has to be settled, and a commit that cannot be
 * written breaks the store for this process: so on the last of the room claims write nothing, and the sweep neither.
 */
export class Room {
  readonly #path: string;
  readonly #keepFreeBytes: number;
  readonly #timer: NodeJS.Timeout;
  #freeBytes: number;

  /** @param keepFreeBytes default: 64 MiB, in which thousands of small answers can be settled, and some dozens of 1 MiB */
  constructor(path: string, keepFreeBytes = 64 * MIB) {
    this.#path = path;
    this.#keepFreeBytes = keepFreeBytes;
    this.#freeBytes = freeIn(statfsSync(path));
    this.#timer = setInterval(() => void this.#look(), LOOK_EVERY_MS).unref();
  }

  /** What people are told where there is too little. */
  get shortage(): string | undefined {
    if (this.#freeBytes >= this.#keepFreeBytes) return undefined;
    const [free, keep] = [this.#freeBytes, this.#keepFreeBytes].map((bytes) => Math.floor(bytes / MIB));
    return `nothing new is executed: the disk of ${this.#path} has ${free} MiB left, and ${keep} are kept for what has begun`;
  }

  /** @throws {StoreUnavailable} where a claim must not write */
  need(): void {
    const { shortage } = this;
    if (shortage) throw new StoreUnavailable(`lmdb: ${shortage}`, { maybeWritten: false });
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #look(): Promise<void> {
    // A folder that has gone is the health check's to tell.
    this.#freeBytes = await statfs(this.#path).then(freeIn, () => this.#freeBytes);
  }
}

/** Some file systems tell nothing of their size. */
function freeIn({ blocks, bavail, bsize }: { blocks: number; bavail: number; bsize: number }): number {
  return blocks === 0 ? Number.POSITIVE_INFINITY : bavail * bsize;
}
