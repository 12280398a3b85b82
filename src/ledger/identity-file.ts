import { chmod, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join, parse } from 'node:path';
import * as z from 'zod';
import { systemRandom } from '../lib/random.ts';
import type { StoreOptions } from '../store/store-options.ts';

/** Where the identity of a configuration's store is kept. Each configuration has its own, because two may use different stores. */
export function identityFileOf(configFile: string, { store }: { store: StoreOptions }): string {
  return store.identityFile ?? join(dirname(configFile), `${parse(configFile).name}.store-identity.json`);
}

/** Must change with what an older gateway would misread. */
const FILE_FORMAT = 1;

const change = z.object({ at: z.iso.datetime(), what: z.string() });

/** What the file holds. */
const notedSchema = z.object({
  format: z.literal(FILE_FORMAT),
  /** The store's identity when it was last seen. The file has called it so since its first format. */
  mark: z.object({ id: z.string().regex(/^[0-9a-f]{32}$/), count: z.int() }),
  seenAt: z.iso.datetime(),
  /** The last time that the store was not the expected one. An acceptance removes it. */
  changed: change.optional(),
  /** The last acceptance: an operator has said that the keys which the store forgot may be new. */
  accepted: change.extend({ by: z.string(), reason: z.string() }).optional(),
});

export type Noted = z.infer<typeof notedSchema>;

/** A later version wrote the file. */
export class ForeignFile extends Error {}

/** @throws {ForeignFile} if a later version wrote it, and another error if it is missing or damaged */
export async function readNoted(file: string): Promise<Noted> {
  const noted = JSON.parse(await readFile(file, 'utf8'));
  const { format } = noted;
  if (format !== FILE_FORMAT)
    throw new ForeignFile(
      `it has format ${String(format ?? 'none').slice(0, 20)}, and this version knows format ${FILE_FORMAT}`,
    );
  const { success, data } = notedSchema.safeParse(noted);
  if (!success) throw new SyntaxError('not a store identity');
  return data;
}

/** Makes the new file durable before it is in place, because a file that a power failure has cut would have forgotten a refusal. */
export async function writeNoted(file: string, noted: Omit<Noted, 'format'>): Promise<void> {
  // Containers that share a volume may have the same pid.
  const draft = `${file}.${systemRandom.token().toString('hex')}`;
  const text = JSON.stringify({ format: FILE_FORMAT, ...noted }, undefined, 2);
  try {
    await writeFile(draft, `${text}\n`, { flush: true });
    // The operator who accepts the store may be another user, with another umask, than the gateway that reads the file.
    await chmod(draft, 0o644);
    await rename(draft, file);
  } catch (error) {
    // Otherwise a full disk would get another draft every quarter of a second.
    await rm(draft, { force: true });
    throw error;
  }
}
