import type { ResolveRequest } from '../../doubts/record-view.ts';
import { Exit, noteOfOptions, readArguments, required, TEXT, type Terminal } from '../arguments.ts';
import { found, namedRecordId, RECORD_OPTIONS, readNamed, withDesk } from './open-desk.ts';

const USAGE = `oncegate records resolve --config FILE (--record-id ID | --merchant M --key K [--layer L]) --execution E --as completed|released --reason TEXT

Resolves a key in doubt: records what became of its request. Look into the books of the backend first.

  --layer L        the layer whose record it is (default: idempotency.layer of the configuration; an embedded application's is middleware)
  --execution E    the execution that you looked at (records show and records list --json print it). It is refused if the key has been
                   executed again since
  --as completed   the backend executed it. Retries get the response below, or 409 response_not_stored without one
  --as released    the backend surely did not execute it, and no gateway still works on it. The next retry executes it
  --reason TEXT    why; kept in the audit trail
  --by NAME        who; kept in the audit trail (default: the user of this process)

The response:
  --status N       its status
  --header LINE    one of its header lines, 'Name: value'; repeat the option for more
  --body FILE      its body, byte for byte
`;

const OPTIONS = {
  ...RECORD_OPTIONS,
  ...{ as: TEXT, reason: TEXT, by: TEXT, execution: TEXT, status: TEXT, body: TEXT },
  header: { ...TEXT, multiple: true },
} as const;

export async function resolve(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const config = required(options.config, 'config', USAGE);
  const as = required(options.as, 'as', USAGE);
  if (as !== 'completed' && as !== 'released')
    throw new Exit(`--as must be completed or released, not ${JSON.stringify(as)}`, 64);
  const request: ResolveRequest = {
    recordId: namedRecordId(options, USAGE, terminal),
    as,
    ...noteOfOptions(options, USAGE),
    status: options.status === undefined ? undefined : Number(options.status),
    headers: options.header?.flatMap(headerOf),
    body: options.body === undefined ? undefined : readNamed(options.body, 'body').toString('base64'),
    execution: required(options.execution, 'execution', USAGE),
  };
  const { recordId, from, to } = await withDesk(config, terminal, (desk) => found(desk.resolve(request)));
  terminal.stdout.write(
    `${from.operation} of ${from.merchant} was ${from.state} and is now ${to.as} (recordId ${recordId})\n`,
  );
}

function headerOf(line: string): [string, string] {
  const at = line.indexOf(':');
  if (at < 1)
    throw new Exit(`--header ${JSON.stringify(line)} is not a header line such as 'Name: value'`, 64);
  return [line.slice(0, at), line.slice(at + 1).trim()];
}
