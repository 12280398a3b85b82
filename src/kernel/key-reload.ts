/**
 * A key file was taken, or refused: then the old keys stay in force. `error` is safe to log. `version` is a digest of the
 * file's bytes, or why they cannot be read.
 */
export type KeyReload = ({ ok: true; keys: number } | { ok: false; error: string }) & { version: string };
