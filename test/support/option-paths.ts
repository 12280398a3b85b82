import type { $ZodType, $ZodTypes } from 'zod/v4/core';

/**
 * The path of every option that a schema knows, such as `operations[].match.path`. The alternatives of a union share
 * their paths; what a record holds has no names of its own.
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
      // What a file may hold is behind a preprocessing, or before a transformation.
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

/** The paths that a document has a value for, written as {@link optionPaths} writes them, and all above them. */
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
