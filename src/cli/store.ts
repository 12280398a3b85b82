import { loadConfig } from '../config/load.ts';
import { checkNote } from '../doubts/resolution.ts';
import { acceptStore } from '../ledger/accept-store.ts';
import { identityFileOf } from '../ledger/identity-file.ts';
import { openLedger, openRegister, prepareSchema } from '../ledger/open-store.ts';
import { refusesIn } from '../ledger/store-watch.ts';
import { systemClock } from '../lib/clock.ts';
import { type Prepared, preparingSql } from '../store/postgres/prepare.ts';
import { StoreUnavailable } from '../store/types.ts';
import {
  commandOf,
  Exit,
  FLAG,
  noteOfOptions,
  readArguments,
  required,
  TEXT,
  type Terminal,
} from './arguments.ts';
import { refuseMissingStore } from './records/open-desk.ts';

const USAGE = `oncegate store accept --config FILE --reason TEXT [--by NAME]
oncegate store prepare --config FILE [--print]
oncegate store repair-index --config FILE

accept: accepts a store that is another one, was emptied, or is older than it was. Until then its gateways start no new key, because
every key that it has forgotten is paid again. docs/runbook/after-a-backup-was-restored.md says what to do before. Running gateways
notice it within seconds. Each configuration on each machine has its own file, so repeat this for each.

  --reason TEXT    why, in one line; kept in the file of the store's identity, and logged
  --by NAME        who (default: the user of this process)

prepare: makes the schema and the tables of a store in PostgreSQL, unless they are there, and replaces the functions of another version.
Gateways need no right to make any, and refuse the functions of another version.

  --print          prints the SQL, for the owner of the database, and runs nothing. It ends with the rights of the gateways' role

repair-index: finds keys in doubt again that are missing in counts and lists, because somebody removed the index that Redis keeps of
them. Reads the head of every record, in small steps, while gateways run.

Exit codes: 0 done, 1 there is nothing to prepare, to accept or to repair, or the file cannot be used, 64 wrong arguments, 69 the store cannot be
used, 78 the configuration is wrong.
`;

const OPTIONS = { config: TEXT, reason: TEXT, by: TEXT };

export const store = commandOf('store', { prepare, accept, 'repair-index': repairIndex }, USAGE);

const PREPARED: Record<Prepared, (schema: string) => string> = {
  made: (schema) => `prepared: the schema ${schema}`,
  replaced: (schema) => `prepared: the functions of the schema ${schema} are those of this version`,
  unchanged: (schema) => `nothing to do: the schema ${schema} is prepared`,
};

async function prepare(args: string[], { env, stdout }: Terminal): Promise<void> {
  const options = readArguments(args, { config: TEXT, print: FLAG }, USAGE);
  const { store: section } = loadConfig(required(options.config, 'config', USAGE), env);
  if (section.kind !== 'postgres')
    throw new Exit(`there is nothing to prepare: ${section.kind} needs no tables that a person makes`, 1);
  if (options.print) stdout.write(preparingSql(section));
  else stdout.write(`${PREPARED[await prepareSchema(section)](section.schema)}\n`);
}

async function accept(args: string[], { env, stdout }: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const configFile = required(options.config, 'config', USAGE);
  const note = noteOfOptions(options, USAGE);
  const mistake = checkNote(note);
  if (mistake) throw new Exit(mistake, 64);
  const config = loadConfig(configFile, env);
  refuseMissingStore(config);
  const file = identityFileOf(configFile, config);
  const opened = await openLedger(config, systemClock, { mayBeFile: true });
  try {
    const { mode } = config.idempotency;
    const refuses = refusesIn(config);
    const accepting = acceptStore({ file, store: opened, mode, refuses, clock: systemClock }, note);
    const what = await accepting.catch((error: Error) => {
      throw error instanceof StoreUnavailable
        ? error
        : new Exit(`${file} cannot be used: ${error.message}`, 1);
    });
    if (what === undefined)
      throw new Exit('there is nothing to accept: the store is the one that was used', 1);
    stdout.write(`accepted: ${what}\n`);
  } finally {
    await opened.close();
  }
}

async function repairIndex(args: string[], { env, stdout, stderr }: Terminal): Promise<void> {
  const { config: file } = readArguments(args, { config: OPTIONS.config }, USAGE);
  const config = loadConfig(required(file, 'config', USAGE), env);
  const register = await openRegister(config, 'oncegate store', systemClock, { mayBeFile: true });
  try {
    if (!register.repairIndex)
      throw new Exit(
        `there is nothing to repair: ${config.store.kind} itself keeps the index of its records`,
        1,
      );
    let last = 0;
    await register.repairIndex((records) => {
      if (records - last >= REPORT_EVERY) stderr.write(`${records} records read ...\n`);
      last = records - last >= REPORT_EVERY ? records : last;
    });
    stdout.write('repaired: the index has every record that is open\n');
  } finally {
    await register.close();
  }
}

/** Records between two lines about the progress. */
const REPORT_EVERY = 100_000;
