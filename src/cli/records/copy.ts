import { resolve } from 'node:path';
import { loadConfig } from '../../config/load.ts';
import type { Config } from '../../config/schema.ts';
import { identityFileOf } from '../../gateway/store-watch.ts';
import { Copy, CopyRefused, type CopyReport } from '../../ledger/copy/copy.ts';
import { systemClock } from '../../lib/clock.ts';
import { type CopySide, Superseded } from '../../store/copy-side.ts';
import { openCopySide } from '../../store/open-register.ts';
import { Exit, readArguments, required, type Terminal } from '../arguments.ts';
import { printable, table } from '../table.ts';
import { refuseMissingStore } from './desk.ts';

const USAGE = `oncegate records copy --from CONFIG --to CONFIG [--prepare | --undo] [--longest-pause-ms N]

Moves all records from the store of one configuration to that of another, while gateways serve. Payouts pause for less than a second.
docs/operations.md says how to switch the gateways.

  --prepare    only mark both stores: gateways on the new store can be started, and are not ready until the copy is complete
  --longest-pause-ms N
               do not switch if payouts would pause for longer (default 1000)
  --undo       remove what was copied, so that the old store serves again. Only until the new store was opened

A run that was interrupted can be repeated, or undone. The new store must be empty. A Redis Cluster cannot be copied.

Exit codes: 0 done, 1 refused, 64 wrong arguments, 69 a store cannot be used, 78 a configuration is wrong. After 69, run it again.
`;

const OPTIONS = {
  from: { type: 'string' },
  to: { type: 'string' },
  'longest-pause-ms': { type: 'string', default: '1000' },
  prepare: { type: 'boolean' },
  undo: { type: 'boolean' },
} as const;

export async function copy(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  if (options.prepare && options.undo)
    throw new Exit(`--prepare and --undo exclude each other\n\n${USAGE}`, 64);
  const longestPauseMs = Number(options['longest-pause-ms']);
  if (!/^\d{1,8}$/.test(options['longest-pause-ms']))
    throw new Exit(`--longest-pause-ms must be a number of milliseconds\n\n${USAGE}`, 64);
  const files = (['from', 'to'] as const).map((name) => required(options[name], name, USAGE));
  const [from, to] = files.map((file) => loadConfig(file, terminal.env)) as [Config, Config];
  if (!options.undo) {
    refuseObserving({ '--from': from, '--to': to });
    const [mark, otherMark] = [from, to].map((config, i) =>
      resolve(identityFileOf(files[i] as string, config)),
    );
    if (mark === otherMark)
      throw new Exit(
        `both configurations note the mark of their store in ${mark}, and each would take the other's store for one that forgot: set store.identityFile in one of them`,
        1,
      );
  }
  refuseMissingStore(from);
  const sides: CopySide[] = [];
  try {
    for (const config of [from, to]) sides.push(await openCopySide(config, systemClock));
    const [source, destination] = sides as [CopySide, CopySide];
    for (const side of sides)
      for (const warning of side.warnings) terminal.stderr.write(`oncegate: ${side.name}: ${warning}\n`);
    const run = new Copy({
      from: source,
      to: destination,
      clock: systemClock,
      longestPauseMs,
      onProgress: (line) => void terminal.stdout.write(`${printable(line)}\n`),
    });
    if (options.prepare) await run.prepare();
    else if (options.undo) await run.undo();
    else terminal.stdout.write(textOf(await run.run()));
  } catch (error) {
    if (error instanceof CopyRefused || error instanceof Superseded) throw new Exit(error.message, 1);
    throw error;
  } finally {
    for (const side of sides) await side.close();
  }
}

/**
 * Under `mode: observe`, a gateway sends every request, whatever the mark of its store says. It would execute keys again that
 * gateways on the other store have executed.
 *
 * @throws {Exit} 1
 */
function refuseObserving(configs: Record<string, Config>): void {
  for (const [option, { idempotency }] of Object.entries(configs))
    if (idempotency.mode === 'observe')
      throw new Exit(
        `the configuration of ${option} has idempotency.mode: observe, and its gateways would send keys again that the other store knows: set mode: protect and restart them before the copy`,
        1,
      );
}

function textOf({ copiedBefore, copiedInPause, pauseMs, followed }: CopyReport): string {
  const { completed, released, inDoubt, stale } = followed;
  const rows = [
    ['copied while the old store served', copiedBefore],
    ['copied in the pause', copiedInPause],
    ['pause in ms', pauseMs ?? 'in an earlier run'],
    ['then completed on the old store', completed],
    ['then released on the old store', released],
    ['in doubt', inDoubt],
    ['completed on the old store, but resolved or sent again on the new one', stale],
  ].map((row) => row.map(String));
  const later =
    inDoubt > 0
      ? 'Keys in doubt: if a gateway on the old store was paused and continues, run this command again to copy its results.\n'
      : '';
  return table(['WHAT', 'KEYS'], rows) + later;
}
