import { actionOf, Exit, type Terminal } from '../arguments.ts';
import { importKey, issue, printHash, remove, revoke, rotate } from './change.ts';
import { list, showKey, verify } from './read.ts';

const USAGE = `oncegate keys: issue, list, rotate, revoke and remove secret keys in a key file.

  oncegate keys issue --merchant CODE [--id ID] [--mode live|test] [--scope OPERATION]... [--expires TIME]
  oncegate keys rotate --merchant CODE [--id ID] [--mode live|test] [--overlap 24h]
  oncegate keys revoke --merchant CODE --id ID [--at TIME]
  oncegate keys remove --merchant CODE --id ID
  oncegate keys import --merchant CODE --id ID [--scope OPERATION]... [--expires TIME] [--allow-short]
  oncegate keys list [--merchant CODE] [--json]
  oncegate keys show --merchant CODE --id ID
  oncegate keys verify
  oncegate keys hash --id ID [--scope OPERATION]...

All but hash take --file FILE, a key file (default ./keys.yaml), or --config FILE, a configuration whose auth.keys names one. TIME is
ISO 8601 with a zone, or a duration from now such as 30d or 24h.
With --config, issue and import refuse a scope that no operation has. remove takes a revoked or expired key out of the file.
Without auth.pepper in a configuration, the environment variable ONCEGATE_PEPPER must have its value, except for list, show, revoke and
remove. issue and rotate print the new secret key on standard output, once: only its hash is stored. rotate gives the new key the
scopes of the old one and no end; --overlap says until when the old one is valid. import, verify and hash read a
secret key from standard input. A running gateway uses changed keys within a second.
With auth.keys.source: upstream a gateway has no key list: the backend issues and revokes the keys, and no command here changes that.
Exit codes: 0 done, 1 refused, 64 wrong arguments, 78 no pepper, or the keys or the configuration are wrong.
`;

const ACTIONS: Record<string, (args: string[], terminal: Terminal, usage: string) => Promise<void>> = {
  ...{ issue, rotate, revoke, remove, import: importKey, hash: printHash },
  ...{ list, show: showKey, verify },
};

export async function keys([action = '', ...args]: string[], terminal: Terminal): Promise<void> {
  const act = actionOf(ACTIONS, action, 'keys', USAGE);
  try {
    await act(args, terminal, USAGE);
  } catch (error) {
    const { name, message } = error as Error;
    // `hash` reads no keys: its mistakes are those of the arguments.
    if (name === 'KeyFileError' && action !== 'hash') throw new Exit(message, 78);
    throw error;
  }
}
