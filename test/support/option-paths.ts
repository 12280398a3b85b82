import type { $ZodType, $ZodTypes } from 'zod/v4/core';

/**
 * The path of every option that a schema knows, such as `operations[].match.path`. The alternatives of a union share
 * their paths. The members of a record are not options, because their names are free.
 */
export function optionPaths(schema: $ZodType, path = ''): Set<string> {
  const { def } = (schema as $ZodTypes)._zod;
  switch (def.type) {
    case 'default':
    case 'prefault':
    case 'optional':
    case 'nonoptional':
      return optionPaths(def.innerType, path);
    case 'pipe': {
      // The file's shape is the output of a preprocessing, and the input of a transformation.
      const isTransformed = (def.out as $ZodTypes)._zod.def.type === 'transform';
      return optionPaths(isTransformed ? def.in : def.out, path);
    }
    case 'object':
      return union(
        Object.entries(def.shape).map(([name, option]) =>
          optionPaths(option, path === '' ? name : `${path}.${name}`),
        ),
      );
    case 'array':
      return optionPaths(def.element, `${path}[]`);
    case 'union':
      return union(def.options.map((option) => optionPaths(option, path)));
    default:
      return new Set([path.replace(/\[\]$/, '')]);
  }
}

/** The paths of all values in a document and of the sections around them, in the notation of {@link optionPaths}. */
export function pathsIn(value: unknown, path = ''): Set<string> {
  const own = new Set([path.replace(/\[\]$/, '')]);
  if (Array.isArray(value)) return union([own, ...value.map((item) => pathsIn(item, `${path}[]`))]);
  if (typeof value !== 'object' || value === null) return own;
  const members = Object.entries(value).map(([name, item]) =>
    pathsIn(item, path === '' ? name : `${path}.${name}`),
  );
  return union([own, ...members]);
}

function union(sets: Set<string>[]): Set<string> {
  return new Set(sets.flatMap((set) => [...set]));
}
