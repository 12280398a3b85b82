/** `node scripts/openapi.ts` writes config/openapi.yaml: the merchants' interface, with the problem codes of the source. */
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { stringify } from 'yaml';
import { openapi } from './openapi/document.ts';

const FILE = fileURLToPath(new URL('../config/openapi.yaml', import.meta.url));

writeFileSync(FILE, stringify(openapi(), { aliasDuplicateObjects: false, lineWidth: 128 }));
