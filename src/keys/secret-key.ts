import { randomInt } from 'node:crypto';
import { crc32 } from 'node:zlib';

const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
/** About 190 random bits. */
const RANDOM_CHARS = 32;
/** Enough for the 32 bits of a CRC. */
const CHECKSUM_CHARS = 6;

const ISSUED = /^(og_(?:live|test)_[0-9A-Za-z]{32})_([0-9A-Za-z]{6})$/;
const ISSUED_PREFIX = /^og_(?:live|test)_/;

/** What is wrong with a secret key for which {@link isMistyped} is true: a gateway refuses it. */
export const MISTYPED = 'begins like a key of `oncegate keys issue`, and its checksum is wrong';

/** A new secret key: `og_live_` or `og_test_`, 32 random characters, `_`, and a checksum of 6 characters. */
export function newSecretKey(mode: 'live' | 'test'): string {
  const random = Array.from({ length: RANDOM_CHARS }, () => DIGITS[randomInt(DIGITS.length)]).join('');
  const text = `og_${mode}_${random}`;
  return `${text}_${checksumOf(text)}`;
}

/** True for a secret key with the prefix of {@link newSecretKey} that it has not made: a character is wrong or missing. */
export function isMistyped(secret: string): boolean {
  if (!ISSUED_PREFIX.test(secret)) return false;
  const [, text = '', checksum] = ISSUED.exec(secret) ?? [];
  return checksum !== checksumOf(text);
}

function checksumOf(text: string): string {
  let rest = crc32(text);
  let checksum = '';
  for (let i = 0; i < CHECKSUM_CHARS; i++) {
    checksum = DIGITS[rest % DIGITS.length] + checksum;
    rest = Math.floor(rest / DIGITS.length);
  }
  return checksum;
}
