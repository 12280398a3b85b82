import { functionsSql } from './functions.ts';
import { tablesSql } from './tables.ts';

/** Makes the schema of a store in one transaction. @param schema an identifier without quotes */
export const schemaSql = (schema: string): string => `BEGIN;
${tablesSql(schema)}
${functionsSql(schema)}
COMMIT;
`;
