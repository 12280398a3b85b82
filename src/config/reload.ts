import { isDeepStrictEqual } from 'node:util';
import { identificationOf, literalOf, type MatchOptions, matchesPath } from '../requests/match-options.ts';
import { pathText } from './explain.ts';
import { type Config, contradictions } from './schema.ts';

/**
 * What becomes of a new version of the configuration file. `changed` and `needsRestart` are paths of options, without
 * values. `mistakes` has one line for each mistake, and no secret.
 */
export type ReloadDecision =
  | { kind: 'accepted'; config: Config; changed: string[]; needsRestart: string[] }
  | { kind: 'refused'; mistakes: string[] };

/**
 * How many versions of `operations` that identify requests differently a process takes, the first one included. One more is refused: all of
 * them stay in memory, an unprotected request is compared with each, and each new name begins new series of metrics.
 */
export const MAX_VERSIONS = 32;

/** The sections that are taken from a new version of the file while the gateway runs. */
export const RELOADED = [
  'operations',
  'limits',
  'log',
  'metrics',
] as const satisfies readonly (keyof Config)[];

/**
 * Merges a new version of the file into the configuration in force: takes the {@link RELOADED} sections from the file, and keeps
 * everything else. Options that contradict each other after that are mistakes, even if the file alone is valid.
 *
 * @param versions the configurations in force since the start that identify requests differently. The last one is in force
 */
export function mergeReload(versions: readonly Config[], loaded: Config): ReloadDecision {
  const inForce = versions.at(-1) as Config;
  const { operations } = loaded;
  const taken = Object.fromEntries(RELOADED.map((section) => [section, loaded[section]]));
  const merged: Config = { ...inForce, ...taken };
  const mistakes = [
    ...[...contradictions(merged)].map(
      ([path, message]) =>
        `${pathText(path)}: ${message}, with the options in force that need a restart to change`,
    ),
    ...reusedNames(versions, operations),
  ];
  if (mistakes.length > 0) return { kind: 'refused', mistakes };
  const changed = differences(inForce, merged);
  const needsRestart = differences(merged, loaded);
  const isKnown = versions.some(
    (version) => identificationOf(version.operations) === identificationOf(operations),
  );
  if (!isKnown && versions.length >= MAX_VERSIONS) {
    const message = `operations: changed ${MAX_VERSIONS} times since the start: restart the gateway before you change them again`;
    return { kind: 'refused', mistakes: [message] };
  }
  return { kind: 'accepted', config: merged, changed, needsRestart };
}

type Declared = Config['operations'][number];

/**
 * Names that have meant other requests since the start, and now have another lookup. That lookup would be asked about the keys of those
 * requests too. It does not know them, and could release keys that were paid.
 */
function reusedNames(versions: readonly Config[], operations: Config['operations']): string[] {
  return operations.flatMap(({ name, match, idempotency: { lookup } }, i) => {
    const isReused = versions.some((version) =>
      version.operations.some(
        (earlier, at) =>
          earlier.name === name &&
          !isDeepStrictEqual(earlier.idempotency.lookup, lookup) &&
          (!matchesSame(earlier.match, match) ||
            losesRequests(match, version.operations.slice(0, at), operations.slice(0, i))),
      ),
    );
    if (lookup === undefined || !isReused) return [];
    return [
      `operations[${i}].name: "${name}" named other requests since the start, and its new lookup would be asked about their keys: choose another name, or restart the gateway when none of them is in doubt`,
    ];
  });
}

/** Whether an operation that was not declared before this one, and now is, may take requests from it. */
const losesRequests = (match: MatchOptions, before: readonly Declared[], now: readonly Declared[]): boolean =>
  now.some(
    (first) =>
      mayOverlap(first.match, match) && !before.some((known) => matchesSame(known.match, first.match)),
  );

function mayOverlap(a: MatchOptions, b: MatchOptions): boolean {
  if (!a.methods.some((method) => b.methods.includes(method))) return false;
  if (Object.entries(a.where).some(([name, value]) => (b.where[name] ?? value) !== value)) return false;
  const arePatterns = literalOf(a.path) === undefined && literalOf(b.path) === undefined;
  return arePatterns || matchesPath(a.path, b.path) || matchesPath(b.path, a.path);
}

const matchesSame = (a: MatchOptions, b: MatchOptions): boolean =>
  isDeepStrictEqual([a.methods, a.path, a.where], [b.methods, b.path, b.where]);

/** The versions with a further one, which is in force now. Of those that identify requests in the same way, the last one stays. */
export function withVersion(versions: readonly Config[], config: Config): Config[] {
  const identification = identificationOf(config.operations);
  return [...versions.filter(({ operations }) => identificationOf(operations) !== identification), config];
}

/** The paths of the options that differ. A list counts as one option. */
function differences(before: unknown, after: unknown, path = ''): string[] {
  if (isDeepStrictEqual(before, after)) return [];
  if (!isSection(before) || !isSection(after)) return [path];
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((name) =>
    differences(before[name], after[name], path === '' ? name : `${path}.${name}`),
  );
}

const isSection = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
