import { readFileSync } from 'node:fs';
import type { Redis } from 'ioredis';

/** Replies of the scripts in commands/, each named after its file. */
type FencedReply = Promise<'ok' | 'stale'>;

declare module 'ioredis' {
  interface RedisCommander {
    begin(record: string, token: Buffer, changedAt: Buffer): FencedReply;
    settle(record: string, token: Buffer, code: string, changedAt: Buffer, settlement: Buffer): FencedReply;
    release(record: string, token: Buffer): FencedReply;
    markInDoubt(record: string, token: Buffer, changedAt: Buffer): FencedReply;
    stillOwned(record: string, token: Buffer): FencedReply;
    withoutOwner(
      record: string,
      seenToken: Buffer,
      seenCode: string,
      leaseMs: number,
      token: Buffer,
      changedAt: Buffer,
    ): Promise<'alive' | 'taken' | 'in_doubt' | 'changed'>;
  }
}

const files = {
  begin: 'begin.lua',
  settle: 'settle.lua',
  release: 'release.lua',
  markInDoubt: 'mark-in-doubt.lua',
  stillOwned: 'still-owned.lua',
  withoutOwner: 'without-owner.lua',
};

/** Gives a client the scripts as commands. ioredis sends the digest, and the text again after a SCRIPT FLUSH. */
export function defineCommands(client: Redis): void {
  for (const [name, file] of Object.entries(files)) {
    const lua = readFileSync(new URL(`./commands/${file}`, import.meta.url), 'utf8');
    client.defineCommand(name, { numberOfKeys: 1, lua });
  }
}
