import type { Desk } from '../../doubts/desk.ts';
import type { AuditView, RecordsAnswer, RecordView, ResolveRequest } from '../../doubts/record-view.ts';
import { Exit, FLAG, noteOfOptions, readArguments, required, TEXT, type Terminal } from '../arguments.ts';
import { printable } from '../table.ts';
import { layerOf, withDesk } from './open-desk.ts';
import { type FileLine, readResolutions } from './resolution-file.ts';

const USAGE = `oncegate records resolve-many --config FILE --from FILE --reason TEXT [--by NAME] [--layer L] [--dry-run]

Resolves many keys in doubt, after an incident: what the books of the backend say of each. Each is resolved as with records resolve,
one after the other. A key that cannot be resolved is reported, and the others are resolved nevertheless. The command may be
interrupted and repeated with the same file: a key that already is what its line says is left as it is.

  --from FILE     one JSON object in each line:
                  {"merchant": "M-1", "key": "order-1", "execution": "8c1e…", "as": "completed", "status": 201,
                   "headers": ["Content-Type", "application/json"], "body": "{}"}
                  {"recordId": "1d9f…", "execution": "5b07…", "as": "released"}
                  A line of records list --lines serves, if you add "as" to it. "execution" is from there: the key is resolved only
                  if it still has that one, and was not executed again meanwhile. No key may be in two lines
  --layer L       the layer whose records the lines without "layer" name (default: idempotency.layer of the configuration; an embedded
                  application's is middleware)
  --reason TEXT   why; kept in the audit trail
  --by NAME       who; kept in the audit trail (default: the user of this process)
  --dry-run       only prints what would be resolved, and writes nothing

Prints a line for each key: ok (resolved), same (it was so before), FAIL (it cannot be resolved, and why). With more than
100 keys, progress goes to standard error.

Exit codes: 0 every key is what its line says, or would be; 1 some are not; 64 the file has a mistake or no lines, and nothing
was written; 69 the store cannot be used; 130 interrupted. With 69 and 130, the keys before that one are resolved.
`;

const OPTIONS = { config: TEXT, from: TEXT, reason: TEXT, by: TEXT, layer: TEXT, 'dry-run': FLAG };

/** What became of a line. `same`: its key was so before. */
interface Done {
  result: 'ok' | 'same' | 'FAIL';
  text: string;
}

/** The store did not answer: the lines from this one on were not looked at. */
class StoreGone extends Error {}

export async function resolveMany(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const config = required(options.config, 'config', USAGE);
  const lines = readResolutions(required(options.from, 'from', USAGE), layerOf(options, USAGE, terminal));
  const note = noteOfOptions(options, USAGE);
  const isDryRun = options['dry-run'] === true;
  const tally = new Tally(lines.length, isDryRun, terminal);
  // A second signal ends the process at once.
  const stop = new AbortController();
  const interrupt = () => stop.abort();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, interrupt);
  // Nobody reads the report any more, as with `| head`.
  terminal.stdout.on('error', interrupt);
  await withDesk(config, terminal, async (desk) => {
    for (const { name, request } of lines) {
      if (stop.signal.aborted) throw tally.exit('interrupted', 130);
      try {
        const done = await resolveOne(desk, { ...request, ...note }, isDryRun);
        // The line comes before the progress: a run that is killed has written each line that its progress counts.
        terminal.stdout.write(`${done.result.padEnd(4)} ${printable(`${name}: ${done.text}`)}\n`);
        tally.add(request.as, done);
      } catch (error) {
        if (error instanceof StoreGone) throw tally.exit(error.message, 69);
        throw error;
      }
    }
  });
  if (tally.failed > 0) throw tally.exit(`${tally.failed} of ${lines.length} keys cannot be resolved`, 1);
  terminal.stdout.write(`${tally.text()}\n`);
}

/** Counts the lines, and reports progress on standard error, because standard output may go to a file. */
class Tally {
  failed = 0;
  readonly #terminal: Terminal;
  readonly #of: number;
  readonly #would: string;
  readonly #every: number;
  readonly #counts = { completed: 0, released: 0, same: 0 };
  #seen = 0;

  constructor(of: number, isDryRun: boolean, terminal: Terminal) {
    this.#terminal = terminal;
    this.#of = of;
    this.#would = isDryRun ? 'would be ' : '';
    this.#every = Math.max(100, Math.ceil(of / 10));
  }

  add(as: FileLine['request']['as'], { result }: Done): void {
    if (result === 'FAIL') this.failed++;
    else this.#counts[result === 'same' ? 'same' : as]++;
    this.#seen++;
    if (this.#seen % this.#every === 0 && this.#seen < this.#of)
      this.#terminal.stderr.write(`oncegate: ${this.#seen} of ${this.#of} keys\n`);
  }

  text(): string {
    const { completed, released, same } = this.#counts;
    const would = this.#would;
    const parts = [`${completed} ${would}completed`, `${released} ${would}released`];
    const rest = this.#of - this.#seen;
    if (same > 0) parts.push(`${same} the same before`);
    if (this.failed > 0) parts.push(`${this.failed} not resolved`);
    if (rest > 0) parts.push(`${rest} not looked at: run the same command again`);
    return parts.join(', ');
  }

  /** Ends the command with the summary. */
  exit(why: string, code: number): Exit {
    this.#terminal.stdout.write(`${this.text()}\n`);
    return new Exit(why, code);
  }
}

function orGone<Value>(answer: RecordsAnswer<Value>): RecordsAnswer<Value> {
  if (answer.kind === 'refused' && answer.why === 'unavailable') throw new StoreGone(answer.detail);
  return answer;
}

async function resolveOne(desk: Desk, request: ResolveRequest, isDryRun: boolean): Promise<Done> {
  const answer = orGone(await desk.resolve(request, isDryRun));
  if (answer.kind !== 'refused') {
    const { state, changedAt } = answer.value.from;
    const text = isDryRun ? `${state} since ${changedAt}, would become` : 'is now';
    return { result: 'ok', text: `${text} ${request.as}` };
  }
  if (answer.why === 'absent' || answer.why === 'changed') {
    const same = await sameBefore(desk, request);
    if (same) return same;
  }
  return { result: 'FAIL', text: answer.detail };
}

/** Whether an earlier run of this file, or someone else, has done what the line says. @throws {StoreGone} */
async function sameBefore(desk: Desk, request: ResolveRequest): Promise<Done | undefined> {
  const answer = orGone(await desk.show(request.recordId));
  if (answer.kind === 'refused') return undefined;
  const { record, audit } = answer.value;
  if (request.as === 'released') return releasedBefore(record, audit, request);
  if (record?.state !== 'completed' || !(await hasResponse(desk, record, request))) return undefined;
  return { result: 'same', text: `was completed like this at ${record.changedAt}` };
}

/**
 * A retry may have executed the key again since its release, so the audit trail is asked and not the record. A key that is in
 * doubt again, or whose owner is gone, is not `same`: the operator has to look at it again.
 */
function releasedBefore(
  record: RecordView | null,
  audit: readonly AuditView[],
  { execution, by, reason }: ResolveRequest,
): Done | undefined {
  if (record && (record.state === 'in_doubt' || record.ownerGone || record.execution === execution))
    return undefined;
  const isThisRun = (entry: AuditView) => entry.by === by.trim() && entry.reason === reason.trim();
  const entry = record ? audit.findLast(isThisRun) : audit.at(-1);
  if (entry?.to.as !== 'released') return undefined;
  const since = record ? ', and was executed again since' : '';
  return { result: 'same', text: `was released at ${entry.at} by ${entry.by}${since}` };
}

/** Whether retries get the response that the line has, or 409 `response_not_stored` if it has none. */
async function hasResponse(
  desk: Desk,
  { recordId, completion }: RecordView,
  { status, headers = [], body = '' }: ResolveRequest,
): Promise<boolean> {
  if (completion?.kind !== 'response') return completion !== undefined && status === undefined;
  if (completion.status !== status || completion.headers.join('\n') !== headers.join('\n')) return false;
  const stored = orGone(await desk.body(recordId));
  return (
    stored.kind === 'found' && Buffer.from(body, 'base64').equals(Buffer.from(stored.value.body, 'base64'))
  );
}
