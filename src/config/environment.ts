const PLACEHOLDER = /\$\{(?:([A-Za-z_][A-Za-z0-9_]*)\})?/g;

/** The configuration with the environment's values in it, or what is wrong with its placeholders. */
export interface Filled {
  value: unknown;
  mistakes: string[];
}

/**
 * Puts the environment's values in the place of `${NAME}`: in values only, never in names, and once. What merely looks
 * like a placeholder is a mistake: a token that anybody can read in the file would be worse than none.
 */
export function fillIn(written: unknown, env: NodeJS.ProcessEnv): Filled {
  const mistakes = new Set<string>();
  const fill = (value: unknown, path: string): unknown => {
    if (typeof value === 'string') {
      return value.replace(PLACEHOLDER, (_, name: string | undefined) => {
        if (name === undefined) mistakes.add(`${path}: \${ must be followed by a name and }: \${NAME}`);
        else if (!env[name]) mistakes.add(`the environment has no ${name}`);
        return (name !== undefined && env[name]) || '';
      });
    }
    if (Array.isArray(value)) return value.map((item, i) => fill(item, `${path}[${i}]`));
    if (typeof value !== 'object' || value === null) return value;
    const members = Object.entries(value).map(([name, item]) => [
      name,
      fill(item, path ? `${path}.${name}` : name),
    ]);
    return Object.fromEntries(members);
  };
  const value = fill(written, '');
  return { value, mistakes: [...mistakes] };
}
