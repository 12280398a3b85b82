import type { Desk } from '../../doubts/desk.ts';
import type { RecordView, ShownRecord } from '../../doubts/record-view.ts';
import { Exit, FLAG, readArguments, required, TEXT, type Terminal } from '../arguments.ts';
import { printable, table } from '../table.ts';
import { found, namedRecordId, RECORD_OPTIONS, withDesk } from './open-desk.ts';

const USAGE = `oncegate records show --config FILE (--record-id ID | --merchant M --key K [--layer L] | --request-id R [--all]) [--body] [--json]

Prints a record without its body, and its audit trail: who resolved it, and why.

  --record-id ID  the record's id, or its first digits: at least 4. The log has the first 16
  --layer L       the layer whose record it is (default: idempotency.layer of the configuration; an embedded application's is middleware)
  --request-id R  the record that the request with this id has started, if it is not completed
  --all           look for the request among all records. It reads the whole store
  --body          print only the stored body, byte for byte
  --json          print JSON
`;

const OPTIONS = { ...RECORD_OPTIONS, 'request-id': TEXT, all: FLAG, body: FLAG, json: FLAG };

const ONLY_FIRST =
  'A record has the id of its first request; the line of a later one in the log has the record id.';
/** How many records are asked for at once. */
const PAGE = 1000;

export async function show(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const { 'request-id': requestId, all } = options;
  if (requestId === undefined && all) throw new Exit(`--all needs --request-id\n\n${USAGE}`, 64);
  const named = requestId === undefined ? namedRecordId(options, USAGE, terminal) : undefined;
  if (requestId !== undefined && (options['record-id'] ?? options.merchant ?? options.key) !== undefined)
    throw new Exit(`--request-id names the record alone\n\n${USAGE}`, 64);
  await withDesk(required(options.config, 'config', USAGE), terminal, async (desk) => {
    const recordId = named ?? (await startedBy(requestId as string, all ?? false, desk, terminal));
    if (options.body) {
      const { body } = await found(desk.body(recordId));
      return void terminal.stdout.write(Buffer.from(body, 'base64'));
    }
    const shown = await found(desk.show(recordId));
    terminal.stdout.write(options.json ? `${jsonOf(shown)}\n` : textOf(shown));
  });
}

/** Finds the record that a request has started. @throws {Exit} 1 unless there is exactly one */
async function startedBy(requestId: string, all: boolean, desk: Desk, { stderr }: Terminal): Promise<string> {
  if (all) stderr.write('oncegate: reads all records of the store\n');
  const ids = new Set<string>();
  let read = 0;
  let cursor: string | undefined;
  do {
    const search = { inDoubt: false, open: !all, limit: PAGE, cursor, requestId };
    const page = await found(desk.list(search));
    for (const { recordId } of page.records) ids.add(recordId);
    read += page.read;
    cursor = page.cursor;
    if (all) stderr.write(`oncegate: ${read} records were read\n`);
  } while (cursor !== undefined);
  const [id] = ids;
  if (id !== undefined && ids.size === 1) return id;
  const several = `${ids.size} records were started by requests with this id:\n${[...ids].join('\n')}`;
  const none = all ? 'No record' : 'No open record (--all looks among all)';
  throw new Exit(ids.size > 1 ? several : `${none} was started by this request. ${ONLY_FIRST}`, 1);
}

/** The backend chooses header fields, perhaps by what a merchant sent. Terminals execute these characters, which JSON may have as they are. */
const jsonOf = (shown: ShownRecord): string =>
  JSON.stringify(shown, null, 2).replace(/[\x7f-\x9f]/g, (c) => `\\u00${c.charCodeAt(0).toString(16)}`);

function textOf({ record, audit }: ShownRecord): string {
  const trail = audit.map(({ at, by, reason, from, to }) => [
    at,
    by,
    `${from.state} since ${from.changedAt}`,
    to.kind === 'tombstone' ? 'completed without a response' : [to.as, to.status].join(' ').trim(),
    reason,
  ]);
  const resolved = trail.length > 0 ? `\n${table(['AT', 'BY', 'WAS', 'BECAME', 'REASON'], trail)}` : '';
  return (record ? recordText(record) : 'The record does not exist any more.\n') + resolved;
}

function recordText({ completion, state, ownerGone, encryptionKeyId, ...record }: RecordView): string {
  const { merchant, operation, key, requestId, gatewayId, execution, createdAt, changedAt, recordId } =
    record;
  const { fingerprint, expiresAt, cause, sentAgain } = record;
  const fields = {
    merchant,
    operation,
    key,
    cause: [cause ?? [], sentAgain ? 'it was sent again' : []].flat().join('; ') || undefined,
    'request id': requestId,
    gateway: gatewayId,
    execution,
    'started at': createdAt,
    'changed at': changedAt,
    'expires at': expiresAt && `${expiresAt} or later, unless it changes: its key is new then`,
    fingerprint,
    recordId,
  };
  const rows: [string, string | undefined][] = [
    ['state', ownerGone ? `${state}, owner gone` : state],
    ...Object.entries(fields),
    ...completionRows(completion),
    ...(encryptionKeyId === undefined
      ? []
      : [['encrypted', `with the key ${encryptionKeyId}`] satisfies [string, string]]),
  ];
  return rows.map(([name, value = '']) => `${name.padEnd(12)}${printable(value)}\n`).join('');
}

function completionRows(completion: RecordView['completion']): [string, string][] {
  if (!completion) return [];
  if (completion.kind === 'tombstone') return [['response', 'not stored']];
  const { status, headers, bodyBytes } = completion;
  const lines = headers.flatMap((name, i): [string, string][] =>
    i % 2 === 0 ? [['header', `${name}: ${headers[i + 1]}`]] : [],
  );
  return [['response', `${status}, ${bodyBytes} bytes`], ...lines];
}
