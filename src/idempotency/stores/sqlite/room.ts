import { statfsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';

const LOOK_EVERY_MS = 1000;
const MIB = 1024 * 1024;
/** Thousands of small responses fit into it, and some dozens of 1 MiB. */
const DEFAULT_KEEP_FREE_BYTES = 64 * MIB;

/**
 * The disk reserve. New executions are refused below it, so that those that were already sent can still be completed.
 */
export class Room {
  readonly #path: string;
  readonly #keepFreeBytes: number;
  readonly #timer: NodeJS.Timeout;
  #freeBytes: number;

  constructor(path: string, keepFreeBytes = DEFAULT_KEEP_FREE_BYTES) {
    this.#path = path;
    this.#keepFreeBytes = keepFreeBytes;
    this.#freeBytes = freeIn(statfsSync(path));
    this.#timer = setInterval(() => void this.#look(), LOOK_EVERY_MS).unref();
  }

  /** For the operator: why nothing new is started, or undefined. */
  get shortage(): string | undefined {
    if (this.#freeBytes >= this.#keepFreeBytes) return undefined;
    const [free, keep] = [this.#freeBytes, this.#keepFreeBytes].map((bytes) => Math.floor(bytes / MIB));
    return `nothing new is started: the disk of ${this.#path} has ${free} MiB left, and ${keep} MiB are kept for what was already sent`;
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #look(): Promise<void> {
    // If the folder is gone, the writer says so.
    this.#freeBytes = await statfs(this.#path).then(freeIn, () => this.#freeBytes);
  }
}

/** Some file systems report no size. */
function freeIn({ blocks, bavail, bsize }: { blocks: number; bavail: number; bsize: number }): number {
  return blocks === 0 ? Number.POSITIVE_INFINITY : bavail * bsize;
}
