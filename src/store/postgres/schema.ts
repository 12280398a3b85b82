import { functionsSql } from './functions.ts';
import { tablesSql } from './tables.ts';

/** Makes the schema of a store, or replaces its functions, in one transaction. @param schema an identifier without quotes */
export const schemaSql = (schema: string): string => `BEGIN;
${tablesSql(schema)}
${functionsSql(schema)}
DO $trigger$ BEGIN
IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '${schema}.records'::regclass AND tgname = 'refuse_truncate') THEN
  CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON ${schema}.records EXECUTE FUNCTION ${schema}.refuse_truncate();
  -- For replication and pg_restore --disable-triggers, too.
  ALTER TABLE ${schema}.records ENABLE ALWAYS TRIGGER refuse_truncate;
END IF;
END $trigger$;
COMMIT;
`;
