import { resolve } from 'node:path';
import { loadConfig } from '../../config/load.ts';
import type { Config } from '../../config/schema.ts';
import { identityFileOf } from '../../ledger/identity-file.ts';
import { openCopyRegister } from '../../ledger/open-store.ts';
import { Copy, CopyRefused, type CopyReport } from '../../ledger/store-copy.ts';
import { systemClock } from '../../lib/clock.ts';
import type { CopyRegister } from '../../store/register.ts';
import { Exit, FLAG, readArguments, required, TEXT, type Terminal } from '../arguments.ts';
import { printable, table } from '../table.ts';
import { refuseMissingStore } from './open-desk.ts';

const USAGE = `oncegate records copy --from CONFIG --to CONFIG [--although-alive | --undo]

Copies all records from the store of one configuration to the empty store of another. Both stores are closed meanwhile: no gateway starts a
new key until it is restarted on the new store. docs/operations.md says how to do it, and how long it takes.

  --although-alive  name the requests that still run, and do not wait for them: their keys will be in doubt
  --undo            open the old store again. Only until the new store was opened. The new one stays closed

A run that was interrupted can be repeated, or undone.

Exit codes: 0 done, 1 refused, 64 wrong arguments, 69 a store cannot be used, 78 a configuration is wrong. After 69, run it again.
`;

const OPTIONS = { from: TEXT, to: TEXT, 'although-alive': FLAG, undo: FLAG };

export async function copy(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  const althoughAlive = options['although-alive'] ?? false;
  if (althoughAlive && options.undo)
    throw new Exit(`--although-alive and --undo exclude each other\n\n${USAGE}`, 64);
  const files = (['from', 'to'] as const).map((name) => required(options[name], name, USAGE));
  const [from, to] = files.map((file) => loadConfig(file, terminal.env)) as [Config, Config];
  if (!options.undo) {
    refuseObserving({ '--from': from, '--to': to });
    const [file, otherFile] = [from, to].map((config, i) =>
      resolve(identityFileOf(files[i] as string, config)),
    );
    if (file === otherFile)
      throw new Exit(
        `both configurations note the identity of their store in ${file}, and each would take the other's store for one that forgot: set store.identityFile in one of them`,
        1,
      );
  }
  refuseMissingStore(from);
  const sides: CopyRegister[] = [];
  try {
    for (const config of [from, to]) sides.push(await openCopyRegister(config, systemClock));
    const [source, destination] = sides as [CopyRegister, CopyRegister];
    const run = new Copy({
      ...{ from: source, to: destination, althoughAlive },
      onProgress: (line) => terminal.stderr.write(`${printable(line)}\n`),
    });
    if (options.undo) await run.undo();
    else terminal.stdout.write(textOf(await run.run()));
  } catch (error) {
    if (error instanceof CopyRefused) throw new Exit(error.message, 1);
    throw error;
  } finally {
    for (const side of sides) await side.close();
  }
}

/**
 * Under `mode: observe`, a gateway sends every request, whatever its store says. It would execute keys again that gateways on the
 * other store have executed.
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

function textOf({ completed, open, audits, cutOff, tookMs }: CopyReport): string {
  const rows = [
    ['records', completed + open],
    ['records that are in doubt', open],
    ['audit trails', audits],
    ['requests that were not waited for', cutOff],
    ['milliseconds that it took', tookMs],
  ].map((row) => row.map(String));
  return table(['COPIED', 'NUMBER'], rows);
}
