import type { SQLInputValue } from 'node:sqlite';
import type { Scope } from '../../../lib/brands.ts';
import type { Mode } from '../../contract.ts';
import type { Create, KeyRecord, Replace } from '../../register.ts';

/*
 * The batch of commands that the main thread sends to the writer thread, as one flat piece of memory: structured cloning of an
 * object for each command costs more than the commands' own work. `Batch` writes it, and `BatchReader` reads it.
 *
 * batch    time (f64: the running time), begin within (f64: milliseconds), number of commands (u32), the commands
 * command  kind (u8), length of what follows (u32), and
 *   create   record id, expires in (f64), record
 *   replace  flags (u16), record id, expires in (f64), revision, the token whose lease ends, the token to void, the length of what
 *            else changes (u32) and that as JSON, record. What the flags do not name is left out
 *   other    JSON
 * record   revision, token, fingerprint, flags (u8), state (u8), kind of completion (u8), five times (f64), the lengths of six texts
 *          (u8 each), the texts (latin1), completion, and if the flag is set, the extension (length and bytes)
 */

/** A command that is rare, so its size does not matter. Bytes are hexadecimal. */
export type OtherCommand =
  | { kind: 'renew'; id: string; token: string; leaseMs: number }
  | { kind: 'endLease'; id: string; token: string }
  /** `newId`: of a store that has no mark. */
  | { kind: 'mark'; mode: Mode; newId: string }
  | { kind: 'sweep' }
  | { kind: 'probe' };

/** What the writer thread answers to a create or a replace. */
export const ANSWERS = { done: 0, refused: 1, void: 2, closed: 3 } as const;

export type Along = { [K in 'audit' | 'counted']: Replace[K] | undefined };

const KINDS = { removed: 0, create: 1, replace: 2, other: 3 } as const;
const HEADER_BYTES = 20;
const COMMAND_HEADER_BYTES = 5;
const ID_BYTES = 32;
const TOKEN_BYTES = 16;
const FINGERPRINT_BYTES = 32;
const LONGEST_TEXT = 255;
const TEXTS = 6;
const TIMES = 5;

const STATES = ['executing', 'completed', 'in_doubt'] as const;
const COMPLETIONS = ['response', 'sealed', 'tombstone'] as const;
const NO_COMPLETION = 0xff;

const REVISION = 1;
const RECORD = 2;
const UNCHANGED = 4;
const UNLESS_LEASED = 8;
const UNLESS_CLOSED = 16;
const END_LEASE = 32;
const VOID_TOKEN = 64;
const ALONG = 128;

const WAS_IN_DOUBT = 1;
const OWNER_GAVE_UP = 2;
const RESTARTED = 4;
const EXTENSION = 8;

/** More than a command needs without what has a length of its own. */
const FIXED_BYTES = 4096;
const FIRST_BYTES = 65_536;

/** A batch while commands are added to it. */
export class Batch {
  count = 0;
  #bytes: Buffer;
  #at = HEADER_BYTES;

  /** @param bytes memory of an earlier batch */
  constructor(bytes: Buffer = Buffer.allocUnsafeSlow(FIRST_BYTES)) {
    this.#bytes = bytes;
  }

  get size(): number {
    return this.#at;
  }

  /** Each of these returns the place of the command, for {@link remove}. */
  create(id: Scope, { record, expiresInMs }: Create): number {
    checkTexts(record);
    const start = this.#begin(KINDS.create);
    this.#id(id);
    this.#double(expiresInMs);
    this.#record(record);
    return this.#end(start);
  }

  replace(id: Scope, write: Replace): number {
    const { revision, record, expiresInMs, endLeaseOf, voidToken, audit, counted } = write;
    const along = audit || counted;
    if (record) checkTexts(record);
    const start = this.#begin(KINDS.replace);
    this.#bytes.writeUInt16LE(
      (revision ? REVISION : 0) |
        (record ? RECORD : 0) |
        (expiresInMs === 'unchanged' ? UNCHANGED : 0) |
        (write.unlessLeased ? UNLESS_LEASED : 0) |
        (write.unlessClosed ? UNLESS_CLOSED : 0) |
        (endLeaseOf ? END_LEASE : 0) |
        (voidToken ? VOID_TOKEN : 0) |
        (along ? ALONG : 0),
      this.#at,
    );
    this.#at += 2;
    this.#id(id);
    this.#double(expiresInMs === 'unchanged' ? 0 : expiresInMs);
    if (revision) this.#copy(revision);
    if (endLeaseOf) this.#copy(endLeaseOf);
    if (voidToken) this.#copy(voidToken);
    if (along) this.#json({ audit, counted } satisfies Along);
    if (record) this.#record(record);
    return this.#end(start);
  }

  other(command: OtherCommand): number {
    const start = this.#begin(KINDS.other);
    this.#json(command);
    return this.#end(start);
  }

  /** The writer thread passes over the command. */
  remove(place: number): void {
    this.#bytes[place] = KINDS.removed;
  }

  /** Ends the batch. The memory is not used here any more. */
  finish(runningMs: number, beginWithinMs: number): Buffer {
    this.#bytes.writeDoubleLE(runningMs, 0);
    this.#bytes.writeDoubleLE(beginWithinMs, 8);
    this.#bytes.writeUInt32LE(this.count, 16);
    return this.#bytes;
  }

  #begin(kind: number): number {
    this.#reserve(0);
    const start = this.#at;
    this.#bytes[start] = kind;
    this.#at += COMMAND_HEADER_BYTES;
    return start;
  }

  #end(start: number): number {
    this.#bytes.writeUInt32LE(this.#at - start - COMMAND_HEADER_BYTES, start + 1);
    this.count++;
    return start;
  }

  /** Grows the memory, if there is not room for so many bytes and the fixed part of a command. */
  #reserve(bytes: number): void {
    const needed = this.#at + bytes + FIXED_BYTES;
    if (needed <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(needed, 2 * this.#bytes.length));
    this.#bytes.copy(larger, 0, 0, this.#at);
    this.#bytes = larger;
  }

  #record(record: KeyRecord): void {
    const { lifetimes, completion, extension } = record;
    const { merchant, operation, key, requestId, gatewayId, cause } = record;
    const texts = merchant + operation + key + requestId + gatewayId + cause;
    this.#copy(record.revision);
    this.#copy(record.token);
    this.#copy(record.fingerprint);
    const bytes = this.#bytes;
    bytes[this.#at++] =
      (record.wasInDoubt ? WAS_IN_DOUBT : 0) |
      (record.ownerGaveUp ? OWNER_GAVE_UP : 0) |
      (record.restarted ? RESTARTED : 0) |
      (extension ? EXTENSION : 0);
    bytes[this.#at++] = STATES.indexOf(record.state);
    bytes[this.#at++] = completion ? COMPLETIONS.indexOf(completion.kind) : NO_COMPLETION;
    this.#double(record.createdAtMs);
    this.#double(record.changedAtMs);
    this.#double(lifetimes.leaseMs);
    this.#double(lifetimes.retentionMs);
    this.#double(lifetimes.inDoubtRetentionMs);
    bytes[this.#at++] = merchant.length;
    bytes[this.#at++] = operation.length;
    bytes[this.#at++] = key.length;
    bytes[this.#at++] = requestId.length;
    bytes[this.#at++] = gatewayId.length;
    bytes[this.#at++] = cause.length;
    // As one, because each call into native code costs more than its bytes.
    this.#text(texts);
    if (completion?.kind === 'response') {
      const { status, headers, body } = completion.response;
      this.#at = bytes.writeUInt16LE(status, this.#at);
      this.#json(headers);
      this.#sized(body);
    } else if (completion) {
      this.#at = bytes.writeUInt16LE(completion.status, this.#at);
      if (completion.kind === 'sealed') {
        bytes[this.#at++] = completion.keyId.length;
        this.#text(completion.keyId);
        this.#sized(completion.bytes);
      }
    }
    if (extension) this.#sized(extension);
  }

  #id(id: Scope): void {
    this.#at += this.#bytes.write(id, this.#at, ID_BYTES, 'hex');
  }

  #double(value: number): void {
    this.#at = this.#bytes.writeDoubleLE(value, this.#at);
  }

  #copy(bytes: Uint8Array): void {
    this.#bytes.set(bytes, this.#at);
    this.#at += bytes.length;
  }

  #text(text: string): void {
    this.#at += this.#bytes.write(text, this.#at, 'latin1');
  }

  #json(value: unknown): void {
    const json = JSON.stringify(value);
    this.#reserve(3 * json.length);
    const length = this.#bytes.write(json, this.#at + 4);
    this.#bytes.writeUInt32LE(length, this.#at);
    this.#at += 4 + length;
  }

  #sized(bytes: Uint8Array): void {
    this.#reserve(bytes.length);
    this.#at = this.#bytes.writeUInt32LE(bytes.length, this.#at);
    this.#copy(bytes);
  }
}

/** @throws {RangeError} before anything is written into the batch */
function checkTexts({ merchant, operation, key, requestId, gatewayId, cause }: KeyRecord): void {
  const longest = Math.max(
    ...[merchant.length, operation.length, key.length, requestId.length, gatewayId.length, cause.length],
  );
  if (longest > LONGEST_TEXT)
    throw new RangeError(`a text of the record is longer than ${LONGEST_TEXT} characters`);
}

/** The places of {@link BatchReader.values} before those of the record's columns (`RECORD_COLUMNS`). */
export const VALUES = { id: 0, expires: 1, revision: 2, now: 3, endLeaseOf: 4, unlessLeased: 5, record: 6 };
const TOKEN_AT = VALUES.record + 2;

/** Reads a batch in the writer thread, one command at a time. The fields are those of the command that was read last. */
export class BatchReader {
  readonly runningMs: number;
  readonly beginWithinMs: number;
  readonly count: number;
  kind: 'removed' | 'create' | 'replace' | 'other' = 'removed';
  other: OtherCommand | undefined;
  hasRecord = false;
  unlessClosed = false;
  voidToken: Buffer | undefined;
  along: Along | undefined;
  /** What the statements of a create and of a replace have in common: null is what a command does not have. */
  readonly values: SQLInputValue[] = [];
  readonly #bytes: Buffer;
  #at = HEADER_BYTES;
  #next = HEADER_BYTES;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
    this.runningMs = bytes.readDoubleLE(0);
    this.beginWithinMs = bytes.readDoubleLE(8);
    this.count = bytes.readUInt32LE(16);
    this.values[VALUES.now] = this.runningMs;
  }

  get token(): Buffer {
    return this.values[TOKEN_AT] as Buffer;
  }

  read(): void {
    const bytes = this.#bytes;
    const kind = bytes[this.#next];
    this.#at = this.#next + COMMAND_HEADER_BYTES;
    this.#next = this.#at + bytes.readUInt32LE(this.#next + 1);
    if (kind === KINDS.create) {
      this.kind = 'create';
      this.#command(RECORD);
    } else if (kind === KINDS.replace) {
      this.kind = 'replace';
      this.#command(bytes.readUInt16LE(this.#at));
    } else if (kind === KINDS.other) {
      this.kind = 'other';
      this.other = JSON.parse(bytes.toString('utf8', this.#at + 4, this.#next));
    } else this.kind = 'removed';
  }

  #command(flags: number): void {
    const { values } = this;
    if (this.kind === 'replace') this.#at += 2;
    values[VALUES.id] = this.#take(ID_BYTES);
    const expiresInMs = this.#double();
    values[VALUES.expires] = flags & UNCHANGED ? null : Math.ceil(this.runningMs + expiresInMs);
    values[VALUES.revision] = flags & REVISION ? this.#take(TOKEN_BYTES) : null;
    values[VALUES.endLeaseOf] = flags & END_LEASE ? this.#take(TOKEN_BYTES) : null;
    values[VALUES.unlessLeased] = flags & UNLESS_LEASED ? 1 : 0;
    this.voidToken = flags & VOID_TOKEN ? this.#take(TOKEN_BYTES) : undefined;
    this.along = flags & ALONG ? JSON.parse(this.#sized().toString()) : undefined;
    this.unlessClosed = (flags & UNLESS_CLOSED) > 0;
    this.hasRecord = (flags & RECORD) > 0;
    if (this.hasRecord) this.#record();
  }

  #record(): void {
    const { values } = this;
    const bytes = this.#bytes;
    let place = VALUES.record;
    values[place++] = this.#take(TOKEN_BYTES);
    const token = this.#take(TOKEN_BYTES);
    const fingerprint = this.#take(FINGERPRINT_BYTES);
    const flags = bytes[this.#at++] as number;
    values[place++] = STATES[bytes[this.#at++] as number] as string;
    values[place++] = token;
    values[place++] = fingerprint;
    const completion = COMPLETIONS[bytes[this.#at++] as number];
    const timesAt = this.#at;
    const lengthsAt = timesAt + 8 * TIMES;
    this.#at = lengthsAt + TEXTS;
    let length = 0;
    for (let i = 0; i < TEXTS; i++) length += bytes[lengthsAt + i] as number;
    const texts = bytes.toString('latin1', this.#at, this.#at + length);
    this.#at += length;
    for (let i = 0, from = 0; i < TEXTS; i++) {
      const end = from + (bytes[lengthsAt + i] as number);
      values[place++] = texts.slice(from, end);
      from = end;
    }
    for (let i = 0; i < TIMES; i++) values[place++] = bytes.readDoubleLE(timesAt + 8 * i);
    values[place++] = flags & WAS_IN_DOUBT ? 1 : 0;
    values[place++] = flags & OWNER_GAVE_UP ? 1 : 0;
    values[place++] = flags & RESTARTED ? 1 : 0;
    values[place++] = completion ? this.#short() : null;
    values[place++] = completion === 'response' ? this.#sized().toString() : null;
    const keyId = completion === 'sealed' ? this.#take(bytes[this.#at++] as number).toString('latin1') : null;
    values[place++] = completion && completion !== 'tombstone' ? this.#sized() : null;
    values[place++] = keyId;
    values[place] = flags & EXTENSION ? this.#sized() : null;
  }

  #take(length: number): Buffer {
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }

  #sized(): Buffer {
    const length = this.#bytes.readUInt32LE(this.#at);
    this.#at += 4;
    return this.#take(length);
  }

  #short(): number {
    this.#at += 2;
    return this.#bytes.readUInt16LE(this.#at - 2);
  }

  #double(): number {
    this.#at += 8;
    return this.#bytes.readDoubleLE(this.#at - 8);
  }
}
