import { readFileSync, statSync } from 'node:fs';
import { userInfo } from 'node:os';
import type { ResolveRequest } from '../../idempotency/doubt/desk-request.ts';
import { readArguments, required } from '../arguments.ts';
import { Exit } from '../exit.ts';
import { asked, withDesk } from './open-desk.ts';
import { scopeNamed, WHICH } from './which.ts';

const USAGE = `oncegate records resolve --config FILE (--scope S | --merchant M --key K) --as completed|released --reason TEXT

Says what became of a key in doubt. First look into the backend's own books.

  --as completed   it was executed. Retries get the response below; without one they get 409 response_not_stored
  --as released    it surely was not executed, and no gateway still works on it: the key is new, a retry executes it
  --reason TEXT    why; kept in the audit trail
  --by NAME        who (default: the user of this process)
  --execution E    only if the record still belongs to this execution (records show names it)

The response:
  --status N       its status
  --header LINE    a header line, 'Name: value'; any number of them
  --body FILE      its body, byte for byte
`;

const OPTIONS = {
  ...WHICH,
  config: { type: 'string' },
  as: { type: 'string' },
  reason: { type: 'string' },
  by: { type: 'string' },
  execution: { type: 'string' },
  status: { type: 'string' },
  header: { type: 'string', multiple: true },
  body: { type: 'string' },
} as const;

/** The largest that a configuration may allow. */
const MAX_BODY_BYTES = 67_108_864;

interface Resolved {
  scope: string;
  from: { state: string; merchant: string; operation: string };
  to: { as: string };
}

export async function resolve(args: string[]): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  if (!options) return;
  const config = required(options.config, 'config', USAGE);
  const as = required(options.as, 'as', USAGE);
  if (as !== 'completed' && as !== 'released')
    throw new Exit(`--as ${JSON.stringify(as)}: completed or released`, 64);
  const request: ResolveRequest = {
    scope: scopeNamed(options, USAGE),
    as,
    reason: required(options.reason, 'reason', USAGE),
    by: options.by ?? userInfo().username,
    status: options.status === undefined ? undefined : Number(options.status),
    headers: options.header?.flatMap(fieldOf),
    body: options.body === undefined ? undefined : bodyIn(options.body),
    execution: options.execution,
  };
  const { scope, from, to } = await withDesk(config, (desk) =>
    asked<Resolved>(desk, { kind: 'resolve', ...request }),
  );
  process.stdout.write(
    `${from.operation} of ${from.merchant} was ${from.state} and is ${to.as} now (scope ${scope})\n`,
  );
}

function fieldOf(line: string): [string, string] {
  const at = line.indexOf(':');
  if (at < 1) throw new Exit(`--header ${JSON.stringify(line)} is no header line: 'Name: value'`, 64);
  return [line.slice(0, at), line.slice(at + 1).trim()];
}

/** Base64. */
function bodyIn(file: string): string {
  try {
    if (statSync(file).size > MAX_BODY_BYTES) throw new Exit(`${file} is too large to be stored`, 64);
    return readFileSync(file).toString('base64');
  } catch (error) {
    if (error instanceof Exit) throw error;
    throw new Exit(`--body ${file} cannot be read: ${(error as NodeJS.ErrnoException).code}`, 64);
  }
}
