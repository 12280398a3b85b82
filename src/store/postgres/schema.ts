import { functionsSql } from './functions.ts';
import { tablesSql } from './tables.ts';

/** Makes the schema of a store in one transaction. @param schema an identifier without quotes */
export const schemaSql = (schema: string): string => `BEGIN;
${tablesSql(schema)}
${functionsSql(schema)}
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON ${schema}.records EXECUTE FUNCTION ${schema}.refuse_truncate();
-- For replication and pg_restore --disable-triggers, too.
ALTER TABLE ${schema}.records ENABLE ALWAYS TRIGGER refuse_truncate;
COMMIT;
`;
