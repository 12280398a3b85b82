import { createCipheriv, createDecipheriv, createSecretKey, type KeyObject } from 'node:crypto';
import type { RecordId } from '../lib/brands.ts';
import type { BackendResponse, Completion } from '../lib/exchange.ts';
import { systemRandom } from '../lib/random.ts';
import type { Encryption } from './store-options.ts';
import {
  type EncryptedResponse,
  type IdempotencyRecord,
  type RecordHead,
  type ResponseAsStored,
  type StoredCompletion,
  UnreadableRecord,
} from './types.ts';

/** The value of `current` under which nothing is encrypted, and the keys only decrypt. */
const NO_KEY = 'none';

const CIPHER = 'aes-256-gcm';
const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const CIPHERTEXT_AT = NONCE_BYTES + TAG_BYTES;

/**
 * Encrypts the headers and the body of stored responses with AES-256-GCM, for every store (ADR 23).
 *
 * The authentication tag covers record id, status and key id: a response that was copied into another record, or that got another
 * status, cannot be read. Without a current key, responses are stored as they are.
 */
export class ResponseCipher {
  readonly #keys = new Map<string, KeyObject>();
  /** The key that encrypts new responses, if they are encrypted. */
  readonly #current: { id: string; key: KeyObject } | undefined;

  /** @throws {RangeError} for a secret that does not have 32 bytes, and for a current key that is not among the keys */
  constructor({ keys, current = keys[0]?.id ?? NO_KEY }: Encryption = { keys: [] }) {
    for (const { id, secret } of keys) {
      const bytes = Buffer.from(secret, secret.length === 2 * KEY_BYTES ? 'hex' : 'base64');
      if (bytes.length !== KEY_BYTES) throw new RangeError(`the encryption key ${id} must have 32 bytes`);
      this.#keys.set(id, createSecretKey(bytes));
    }
    const key = this.#keys.get(current);
    if (!key && current !== NO_KEY) throw new RangeError(`there is no encryption key ${current}`);
    this.#current = key && { id: current, key };
  }

  /** A completion as it is to be stored. A tombstone has nothing to encrypt. */
  encrypt(recordId: RecordId, completion: Completion): StoredCompletion {
    if (!this.#current || completion.kind === 'tombstone') return completion;
    const { id, key } = this.#current;
    const { status, headers, body } = completion.response;
    // As random as a token, so that no two nonces are equal.
    const nonce = systemRandom.token().subarray(0, NONCE_BYTES);
    const cipher = createCipheriv(CIPHER, key, nonce, { authTagLength: TAG_BYTES });
    cipher.setAAD(boundTo(recordId, status, id));
    const plain = encodeResponse(headers, body);
    const encrypted = cipher.update(plain);
    cipher.final();
    const bytes = Buffer.concat([nonce, cipher.getAuthTag(), encrypted]);
    return { kind: 'encrypted', status, keyId: id, bytes };
  }

  /**
   * A record as it was before it was stored.
   *
   * @throws {UnreadableRecord} if it is encrypted, and this gateway cannot decrypt it
   */
  decrypt(recordId: RecordId, record: RecordHead & { completion?: StoredCompletion }): IdempotencyRecord {
    const { completion } = record;
    if (completion?.kind !== 'encrypted') return record as IdempotencyRecord;
    const response = this.#plainOf(recordId, completion);
    return { ...record, encryptionKeyId: completion.keyId, completion: { kind: 'response', response } };
  }

  /** @throws {UnreadableRecord} if it is encrypted, and this gateway cannot decrypt it */
  decryptResponse(recordId: RecordId, stored: ResponseAsStored): BackendResponse {
    return stored.kind === 'response' ? stored.response : this.#plainOf(recordId, stored);
  }

  /** Why records with this encryption key cannot be decrypted. */
  whyUnknown(keyId: string | undefined): string | undefined {
    if (keyId === undefined || this.#keys.has(keyId)) return undefined;
    return `it is encrypted with the key ${JSON.stringify(keyId)}, which store.encryption.keys does not have`;
  }

  #plainOf(recordId: RecordId, { status, keyId, bytes }: EncryptedResponse): BackendResponse {
    const key = this.#keys.get(keyId);
    if (!key) throw new UnreadableRecord(this.whyUnknown(keyId) as string, 'unknown_key');
    if (bytes.length < CIPHERTEXT_AT) throw new UnreadableRecord('its encrypted response is too short');
    const decipher = createDecipheriv(CIPHER, key, bytes.subarray(0, NONCE_BYTES), {
      authTagLength: TAG_BYTES,
    });
    decipher.setAAD(boundTo(recordId, status, keyId));
    decipher.setAuthTag(bytes.subarray(NONCE_BYTES, CIPHERTEXT_AT));
    const plain = decipher.update(bytes.subarray(CIPHERTEXT_AT));
    try {
      decipher.final();
    } catch {
      throw new UnreadableRecord(
        `its response cannot be decrypted: the key ${JSON.stringify(keyId)} is another one here, or the record was changed`,
        'not_authentic',
      );
    }
    return { status, ...decodeResponse(plain) };
  }
}

/** What the tag covers besides the response. Every record id has the same length, so different values never give the same bytes. */
const boundTo = (recordId: RecordId, status: number, keyId: string): Buffer =>
  Buffer.from(`oncegate response 1 ${recordId} ${status} ${keyId}`, 'latin1');

/** Length of the headers (u32), headers (a JSON array of names and values), body. */
function encodeResponse(headers: readonly string[], body: Buffer): Buffer {
  const fields = Buffer.from(JSON.stringify(headers));
  const bytes = Buffer.allocUnsafe(4 + fields.length + body.length);
  bytes.writeUInt32BE(fields.length);
  fields.copy(bytes, 4);
  body.copy(bytes, 4 + fields.length);
  return bytes;
}

/** The tag was valid, so these bytes are those that {@link encodeResponse} wrote. */
function decodeResponse(bytes: Buffer): Pick<BackendResponse, 'headers' | 'body'> {
  const bodyAt = 4 + bytes.readUInt32BE();
  return { headers: JSON.parse(bytes.toString('utf8', 4, bodyAt)), body: bytes.subarray(bodyAt) };
}
