import * as z from 'zod';
import { configSchema } from './schema.ts';

type JsonSchema = z.core.JSONSchema.BaseSchema;

/** What `${NAME}` in a file looks like. */
const PLACEHOLDER = '\\$\\{';

/**
 * The configuration file as a JSON Schema, for editors. It accepts placeholders such as `${NAME}` where a gateway does. A
 * gateway also refuses options that contradict each other, which a schema cannot express.
 */
export function configJsonSchema(): JsonSchema {
  const schema = z.toJSONSchema(configSchema, {
    io: 'input',
    unrepresentable: 'any',
    // Of an alternative, such as a number or `auto`, the last part of the path is its index.
    override: ({ jsonSchema, path }) =>
      allowPlaceholders(
        jsonSchema,
        path.filter((part) => typeof part === 'string' && part !== 'anyOf').at(-1),
      ),
  });
  return { ...schema, title: 'Configuration of oncegate' };
}

function allowPlaceholders(schema: JsonSchema, name: string | number | undefined): void {
  if (schema.type === 'string') {
    delete schema.minLength;
    if (schema.pattern !== undefined && !schema.pattern.endsWith(PLACEHOLDER))
      schema.pattern = `${schema.pattern}|${PLACEHOLDER}`;
    if (schema.enum !== undefined) {
      const { enum: words } = schema;
      delete schema.enum;
      delete schema.type;
      schema.anyOf = [{ enum: words }, { type: 'string', pattern: PLACEHOLDER }] as JsonSchema[];
    }
  }
  if (schema.type !== 'integer') return;
  if (name === 'port') alsoText(schema, PLACEHOLDER);
  if (typeof name === 'string' && name.endsWith('Ms'))
    alsoText(schema, `^\\d{1,9}(ms|s|m|h|d)$|${PLACEHOLDER}`);
}

/** Allows texts of this form beside the number. */
function alsoText(schema: JsonSchema, pattern: string): void {
  const { minimum, maximum } = schema;
  delete schema.type;
  delete schema.minimum;
  delete schema.maximum;
  schema.anyOf = [{ type: 'integer', ...{ minimum, maximum } } as JsonSchema, { type: 'string', pattern }];
}

/** The names of the options in the section at this path; empty if the path is no section. */
export function optionsAt(path: readonly PropertyKey[]): string[] {
  let sections = [configJsonSchema()];
  for (const part of path) {
    sections = sections.flatMap((section) => {
      const next = typeof part === 'number' ? section.items : section.properties?.[String(part)];
      return next && typeof next === 'object' && !Array.isArray(next)
        ? alternativesOf(next as JsonSchema)
        : [];
    });
  }
  return [...new Set(sections.flatMap(({ properties }) => Object.keys(properties ?? {})))];
}

const alternativesOf = (schema: JsonSchema): JsonSchema[] =>
  [schema, ...(schema.anyOf ?? []), ...(schema.oneOf ?? [])] as JsonSchema[];
