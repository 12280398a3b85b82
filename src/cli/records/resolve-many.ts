import { readFileSync, statSync } from 'node:fs';
import { userInfo } from 'node:os';
import { z } from 'zod';
import type { Desk } from '../../idempotency/doubt/desk.ts';
import { scopeOf } from '../../idempotency/fingerprint.ts';
import type { RecordView, ResolveRequest, ShownRecord } from '../../kernel/records.ts';
import { Exit, readArguments, required } from '../arguments.ts';
import { printable } from '../table.ts';
import { withDesk } from './desk.ts';

const USAGE = `oncegate records resolve-many --config FILE --from FILE --reason TEXT [--by NAME] [--dry-run]

Resolves many keys in doubt, after an incident: what the books of the backend say of each. Each is resolved as with records resolve,
one after the other. A key that cannot be resolved is reported, and the others are resolved nevertheless.

  --from FILE     one JSON object in each line:
                  {"merchant": "M-1", "key": "order-1", "as": "completed", "status": 201, "body": "{}",
                   "headers": ["Content-Type", "application/json"]}
                  {"scope": "1d9f…", "as": "released", "execution": "8c1e…"}
                  "execution" is from records list --json: the key is resolved only if it still has that one. released needs it,
                  because releasing a key that was executed again meanwhile could pay twice. No key may be in two lines
  --reason TEXT   why; kept in the audit trail
  --by NAME       who; kept in the audit trail (default: the user of this process)
  --dry-run       only prints what would be resolved, and writes nothing

Exit codes: 0 all were resolved, or would be; 1 some were not; 64 the file has a mistake, and nothing was written; 69 the store
cannot be used, and the keys before that one are resolved.
`;

const OPTIONS = {
  config: { type: 'string' },
  from: { type: 'string' },
  reason: { type: 'string' },
  by: { type: 'string' },
  'dry-run': { type: 'boolean' },
} as const;

const MAX_FILE_BYTES = 67_108_864;
/** Most mistakes in one message. */
const MAX_MISTAKES = 20;

/** One line of the file. */
const lineSchema = z
  .strictObject({
    scope: z.string().optional(),
    merchant: z.string().optional(),
    key: z.string().optional(),
    as: z.enum(['completed', 'released']),
    status: z.number().optional(),
    headers: z.array(z.string()).optional(),
    /** Text; it is stored in UTF-8. */
    body: z.string().optional(),
    execution: z.string().optional(),
  })
  .refine(
    ({ scope, merchant, key }) =>
      scope === undefined
        ? merchant !== undefined && key !== undefined
        : merchant === undefined && key === undefined,
    { message: 'must have scope, or merchant and key' },
  )
  // The books are older than this command: the key may have been released and executed again since.
  .refine(({ as, execution }) => as === 'completed' || execution !== undefined, {
    message: 'released needs the execution that was looked up, from records list --json',
  });

type Line = z.infer<typeof lineSchema>;

export async function resolveMany(args: string[]): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  if (!options) return;
  const config = required(options.config, 'config', USAGE);
  const lines = readLines(required(options.from, 'from', USAGE));
  const note = { reason: required(options.reason, 'reason', USAGE), by: options.by ?? userInfo().username };
  const isDryRun = options['dry-run'] === true;
  const failed = await withDesk(config, async (desk) => {
    let refused = 0;
    for (const line of lines) {
      const request = { ...requestOf(line), ...note };
      const answer = isDryRun ? await tryOut(desk, request) : await resolveOne(desk, request);
      if (!answer.done) refused++;
      const name = line.key === undefined ? request.scope : `${line.merchant} ${line.key}`;
      process.stdout.write(`${answer.done ? 'ok  ' : 'FAIL'} ${printable(`${name}: ${answer.text}`)}\n`);
    }
    return refused;
  });
  const done = isDryRun ? 'would be resolved' : 'resolved';
  process.stdout.write(`${lines.length - failed} ${done}, ${failed} not\n`);
  if (failed > 0) throw new Exit(`${failed} of ${lines.length} keys cannot be resolved`, 1);
}

interface Done {
  done: boolean;
  text: string;
}

async function resolveOne(desk: Desk, request: ResolveRequest): Promise<Done> {
  const answer = await desk.answer({ kind: 'resolve', ...request });
  if (answer.kind === 'refused' && answer.why === 'unavailable') throw new Exit(answer.detail, 69);
  return answer.kind === 'refused'
    ? { done: false, text: answer.detail }
    : { done: true, text: `is now ${request.as}` };
}

/** What `resolveOne` would most likely do. */
async function tryOut(desk: Desk, request: ResolveRequest): Promise<Done> {
  const mistake = desk.mistakeIn(request);
  if (mistake !== undefined) return { done: false, text: mistake };
  const answer = await desk.answer({ kind: 'show', scope: request.scope });
  if (answer.kind === 'refused' && answer.why === 'unavailable') throw new Exit(answer.detail, 69);
  if (answer.kind === 'refused') return { done: false, text: answer.detail };
  const { record } = answer.value as ShownRecord;
  const why = whyNot(record, request);
  if (why !== undefined) return { done: false, text: why };
  return { done: true, text: `${record?.state} since ${record?.changedAt}, would become ${request.as}` };
}

function whyNot(record: RecordView | null, { execution }: ResolveRequest): string | undefined {
  if (!record) return 'There is no record: there is nothing to resolve.';
  if (record.state === 'completed') return 'It is completed: there is nothing to resolve.';
  if (record.state === 'unreadable') return 'It cannot be read.';
  if (execution !== undefined && execution !== record.execution)
    return 'The record belongs to another execution than the one that was named.';
  return undefined;
}

const requestOf = ({ scope, merchant = '', key = '', body, ...rest }: Line) => ({
  ...rest,
  scope: scope ?? scopeOf(merchant, key),
  body: body === undefined ? undefined : Buffer.from(body).toString('base64'),
});

/** @throws {Exit} 64 with the mistakes of the file, before anything is written */
function readLines(path: string): Line[] {
  const lines: Line[] = [];
  const mistakes: string[] = [];
  const firstLines = new Map<string, number>();
  for (const [i, text] of textOf(path).split('\n').entries()) {
    if (text.trim() === '') continue;
    const json = jsonOf(text);
    if (json === undefined) {
      mistakes.push(`${path}: line ${i + 1}: is not JSON`);
      continue;
    }
    const read = lineSchema.safeParse(json);
    if (read.success) {
      const { scope } = requestOf(read.data);
      const first = firstLines.get(scope);
      if (first !== undefined) mistakes.push(`${path}: line ${i + 1}: is the same key as line ${first}`);
      else firstLines.set(scope, i + 1);
      lines.push(read.data);
    } else {
      const [issue] = read.error.issues;
      const at = issue?.path.join('.');
      mistakes.push(`${path}: line ${i + 1}: ${at ? `${at}: ` : ''}${issue?.message}`);
    }
  }
  if (lines.length + mistakes.length === 0) mistakes.push(`${path} has no lines`);
  if (mistakes.length > MAX_MISTAKES)
    mistakes.splice(MAX_MISTAKES, mistakes.length, `and ${mistakes.length - MAX_MISTAKES} more`);
  if (mistakes.length > 0) throw new Exit(mistakes.join('\n'), 64);
  return lines;
}

/** Undefined if the text is no JSON, which is a mistake of its line. */
function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function textOf(path: string): string {
  try {
    if (statSync(path).size > MAX_FILE_BYTES) throw new Exit(`${path} is too large`, 64);
    return readFileSync(path, 'utf8');
  } catch (error) {
    if (error instanceof Exit) throw error;
    throw new Exit(`--from ${path} cannot be read: ${(error as NodeJS.ErrnoException).code}`, 64);
  }
}
