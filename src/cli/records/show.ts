import type { RecordView, ShownRecord } from '../../doubts/records.ts';
import { FLAG, readArguments, required, type Terminal } from '../arguments.ts';
import { printable, table } from '../table.ts';
import { found, namedRecordId, RECORD_OPTIONS, withDesk } from './desk.ts';

const USAGE = `oncegate records show --config FILE (--record-id ID | --merchant M --key K [--layer L]) [--body] [--json]

Prints a record without its body, and its audit trail: who resolved it, and why.

  --layer L  the layer whose record it is (default: idempotency.layer of the configuration; an embedded application's is middleware)
  --body     print only the stored body, byte for byte
  --json     print JSON
`;

const OPTIONS = { ...RECORD_OPTIONS, body: FLAG, json: FLAG };

export async function show(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const recordId = namedRecordId(options, USAGE, terminal);
  await withDesk(required(options.config, 'config', USAGE), terminal, async (desk) => {
    if (options.body) {
      const { body } = await found(desk.body(recordId));
      return void terminal.stdout.write(Buffer.from(body, 'base64'));
    }
    const shown = await found(desk.show(recordId));
    terminal.stdout.write(options.json ? `${JSON.stringify(shown, null, 2)}\n` : textOf(shown));
  });
}

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
