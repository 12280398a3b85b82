import { Exit } from '../exit.ts';
import { list } from './list.ts';
import { resolve } from './resolve.ts';
import { show } from './show.ts';

const USAGE = `oncegate records: look at records, and resolve keys in doubt.

  oncegate records list --config FILE [--in-doubt] [--limit N] [--json]
  oncegate records show --config FILE (--scope S | --merchant M --key K) [--body] [--json]
  oncegate records resolve --config FILE (--scope S | --merchant M --key K) --as completed|released --reason TEXT

They open the configured store and nothing else. With SQLite, run them on the gateway's machine, while it runs or not.
Each takes --help. Exit codes: 0 done, 64 the command line is wrong, 69 the store cannot be used, 78 the configuration is
wrong, 1 refused: nothing was written.
`;

const actions: Record<string, (args: string[]) => Promise<void>> = { list, show, resolve };

export async function records([action = '', ...args]: string[]): Promise<void> {
  if (action === '--help' || action === '-h') {
    process.stdout.write(USAGE);
    return;
  }
  const act = Object.hasOwn(actions, action) ? actions[action] : undefined;
  if (!act) throw new Exit(`records what?\n\n${USAGE}`, 64);
  await act(args);
}
