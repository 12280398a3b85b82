import { readFileSync } from 'node:fs';
import type { Result } from 'ioredis';
import type { RedisClient } from './connect.ts';

/** Replies of the scripts in commands/, each named after its file. */
type Fenced = 'ok' | 'stale';

declare module 'ioredis' {
  interface RedisCommander<Context> {
    begin(
      record: string,
      lease: string,
      token: Buffer,
      changedAt: Buffer,
      leaseValue: string,
      leaseMs: number,
    ): Result<Fenced, Context>;
    takeOver(
      record: string,
      lease: string,
      token: Buffer,
      fingerprint: Buffer,
      changedAt: Buffer,
      leaseValue: string,
      leaseMs: number,
    ): Result<'ok' | 'changed', Context>;
    settle(
      record: string,
      lease: string,
      token: Buffer,
      leaseValue: string,
      code: string,
      changedAt: Buffer,
      settlement: Buffer,
    ): Result<Fenced, Context>;
    release(record: string, lease: string, token: Buffer, leaseValue: string): Result<Fenced, Context>;
    markInDoubt(
      record: string,
      lease: string,
      token: Buffer,
      leaseValue: string,
      changedAt: Buffer,
    ): Result<Fenced, Context>;
    stillOwned(record: string, token: Buffer): Result<Fenced, Context>;
    withoutOwner(
      record: string,
      seenToken: Buffer,
      seenCode: string,
      leaseMs: number,
      token: Buffer,
      changedAt: Buffer,
    ): Result<'alive' | 'taken' | 'in_doubt' | 'changed', Context>;
    resolveRecord(
      record: string,
      trail: string,
      seenToken: Buffer,
      seenCode: string,
      leaseMs: number,
      code: string,
      token: Buffer,
      changedAt: Buffer,
      settlement: Buffer,
      audit: Buffer,
      auditMs: number,
    ): Result<'ok' | 'alive' | 'changed', Context>;
  }
}

/** Each with the number of its keys. */
const files = {
  begin: ['begin.lua', 2],
  takeOver: ['take-over.lua', 2],
  settle: ['settle.lua', 2],
  release: ['release.lua', 2],
  markInDoubt: ['mark-in-doubt.lua', 2],
  stillOwned: ['still-owned.lua', 1],
  withoutOwner: ['without-owner.lua', 1],
  resolveRecord: ['resolve.lua', 2],
} as const;

/** Gives a client the scripts as commands. ioredis sends the digest, and the text again after a SCRIPT FLUSH. */
export function defineCommands(client: RedisClient): void {
  for (const [name, [file, numberOfKeys]] of Object.entries(files)) {
    const lua = readFileSync(new URL(`./commands/${file}`, import.meta.url), 'utf8');
    client.defineCommand(name, { numberOfKeys, lua });
  }
}
