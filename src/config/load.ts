import { readFileSync } from 'node:fs';
import { type Document, parseDocument } from 'yaml';
import { fillIn } from './environment.ts';
import { explain } from './explain.ts';
import { type Config, configSchema } from './schema.ts';

/** The file cannot be used. The message names each mistake on its own line, and never a secret. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  constructor(file: string, mistakes: readonly string[]) {
    super(mistakes.map((mistake) => `${file}: ${mistake}`).join('\n'));
  }
}

/** @throws {ConfigError} */
export function loadConfig(file: string, env: NodeJS.ProcessEnv): Config {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    throw new ConfigError(file, [`cannot be read (${(error as NodeJS.ErrnoException).code})`]);
  }
  return parseConfig(text, env, file);
}

/** @param file only for messages. @throws {ConfigError} */
export function parseConfig(text: string, env: NodeJS.ProcessEnv, file = 'configuration'): Config {
  const document = parseDocument(text, { prettyErrors: true });
  const [broken] = document.errors;
  if (broken) throw new ConfigError(file, [`is not valid YAML: ${broken.message.split('\n')[0]}`]);
  const written = plain(document, file);
  if (typeof written !== 'object' || Array.isArray(written)) {
    throw new ConfigError(file, ['must be a mapping of sections, such as upstream: { url: … }']);
  }
  const { value, mistakes } = fillIn(written, env);
  if (mistakes.length > 0) throw new ConfigError(file, mistakes);
  const result = configSchema.safeParse(value);
  if (result.success) return result.data;
  throw new ConfigError(
    file,
    result.error.issues.flatMap((issue) => explain(issue, written)),
  );
}

/** The library's own messages would repeat the alias, which may be a secret that was not quoted. */
function plain(document: Document, file: string): object | string {
  try {
    return (document.toJS({ maxAliasCount: 100 }) as object | string | null) ?? {};
  } catch {
    throw new ConfigError(file, ['is not valid YAML: an alias (*name) leads nowhere, or there are too many']);
  }
}
