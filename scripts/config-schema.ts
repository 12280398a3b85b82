/** `node scripts/config-schema.ts` writes config/gateway.schema.json from the schema that the gateway uses. */
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { configJsonSchema } from '../src/config/json-schema.ts';

const FILE = fileURLToPath(new URL('../config/gateway.schema.json', import.meta.url));

writeFileSync(FILE, `${JSON.stringify(configJsonSchema(), undefined, 2)}\n`);
