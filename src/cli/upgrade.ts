import type { OptionChange } from '../config/explain.ts';
import type { Config } from '../config/schema.ts';
import { OtherFormat, STORE_FORMAT, type UsedMark } from '../idempotency/store.ts';
import { thisBuild } from '../kernel/build.ts';

/** What differs between this version and the one that was used before. A part of `oncegate check --json`. */
export interface Upgrade {
  /** This version. */
  version: string;
  /** Undefined: the store was not opened. */
  store?: StoreUpgrade;
  /** Options under names of earlier versions. */
  options: OptionChange[];
}

interface StoreUpgrade {
  /** The format that the store has. */
  format: number;
  /** The only format that this version reads and writes. */
  writes: number;
  /** `new`: no gateway has used it yet. */
  change: 'none' | 'new' | 'refused';
  /** The version of the gateway that used the store last. Null: none did, or one from before 1.0.0, or it is not known. */
  lastUsedBy: string | null;
  /** For the operator. */
  detail: string;
  /** Something must be done, or this version must not be used. */
  needsAttention: boolean;
}

const CHANGELOG = 'follow "Upgrade" in CHANGELOG.md';

/** @param mark the store's. Undefined: no gateway has marked it yet */
export function upgradeOf({ operations }: Config, store?: { mark: UsedMark | undefined }): Upgrade {
  const { version } = thisBuild();
  const options = operations.flatMap(({ match }, i) =>
    match.usesOldName ? [{ option: `operations[${i}].match.body`, now: 'where' }] : [],
  );
  return { version, ...(store && { store: storeUpgrade(store.mark, version) }), options };
}

/** For a configuration or a store that was refused. */
export function refusedUpgrade(error: unknown): Upgrade {
  const { version } = thisBuild();
  const { changes = [] } = error as { changes?: OptionChange[] };
  const refused = otherFormatIn(error);
  if (!refused) return { version, options: changes };
  const { found, known, message } = refused;
  const store = {
    ...{ format: found, writes: known, change: 'refused' as const, lastUsedBy: null },
    ...{ detail: message, needsAttention: true },
  };
  return { version, store, options: changes };
}

function otherFormatIn(error: unknown): OtherFormat | undefined {
  if (error instanceof OtherFormat) return error;
  return error instanceof Error && error.cause !== undefined ? otherFormatIn(error.cause) : undefined;
}

function storeUpgrade(mark: UsedMark | undefined, version: string): StoreUpgrade {
  const same = { format: STORE_FORMAT, writes: STORE_FORMAT };
  if (!mark) {
    const detail = 'no gateway has used it yet';
    return { ...same, change: 'new', lastUsedBy: null, detail, needsAttention: false };
  }
  const { usedBy } = mark;
  return { ...same, change: 'none', lastUsedBy: usedBy ?? null, ...compareVersions(usedBy, version) };
}

/**
 * What the promise for records (docs/releasing.md) says about two versions.
 *
 * @param usedBy the version that used the store last. Undefined: one from before 1.0.0
 * @param version this version
 */
export function compareVersions(
  usedBy: string | undefined,
  version: string,
): Pick<StoreUpgrade, 'detail' | 'needsAttention'> {
  const before = `last used by ${usedBy ?? 'a version before 1.0.0'}; this is ${version}`;
  const told = (detail: string, needsAttention: boolean) => ({
    detail: `${before}${detail}`,
    needsAttention,
  });
  if (usedBy === version) return told('', false);
  const [was, is] = [numbersOf(usedBy ?? '0.0.0'), numbersOf(version)];
  if (!was || !is) return told(', and one of both is not a released version', false);
  const [majors, minors] = [is[0] - was[0], is[1] - was[1]];
  if (majors > 0) return told(`: ${CHANGELOG}`, false);
  if (majors < 0) return told(', which is older by a major version: do not start it', true);
  if (minors < -1)
    return told(
      ', which is older by several minor versions and may be unable to read what that one wrote: go back one minor version at a time',
      true,
    );
  if (minors < 0) return told(', which reads what that one wrote', false);
  if (minors > 1)
    return told(
      ', which reads what that one wrote: stop all gateways of that version before you start this one',
      false,
    );
  return told(': nothing has to be done', false);
}

/** Undefined: it is not a version. */
function numbersOf(version: string): [major: number, minor: number] | undefined {
  const [, major, minor] = /^(\d{1,9})\.(\d{1,9})\.\d{1,9}(?:[-+]|$)/.exec(version) ?? [];
  return major === undefined ? undefined : [Number(major), Number(minor)];
}
