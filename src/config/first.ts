import { readFileSync } from 'node:fs';
import { parseDocument } from 'yaml';
import { programFile } from '../lib/program.ts';

/** What a first configuration says. Without a key file, the backend has the secret keys. */
export interface FirstConfig {
  backend: string;
  forward: string;
  /** The kind of the store. The address of a server is in the environment, as STORE_URL. */
  store: string;
  dataFolder: string;
  keyFile: string | undefined;
}

/** What takes the address of a server from the environment. */
const STORE_URL = '${' + 'STORE_URL}';

/** The text of a first configuration: `config/gateway.init.yaml` and its comments, with these values. */
export function firstConfig({ backend, forward, store, dataFolder, keyFile }: FirstConfig): string {
  const document = parseDocument(readFileSync(programFile('../config/gateway.init.yaml'), 'utf8'));
  document.setIn(['upstream', 'url'], backend);
  if (store === 'sqlite') document.setIn(['store', 'path'], dataFolder);
  else document.setIn(['store'], document.createNode({ kind: store, url: STORE_URL }, { flow: true }));
  document.setIn(['auth', 'forward'], forward);
  document.setIn(['auth', 'keys', 'path'], keyFile);
  if (forward !== 'replace') document.deleteIn(['auth', 'replaceWith']);
  if (keyFile === undefined) {
    document.deleteIn(['auth', 'pepper']);
    document.setIn(['auth', 'keys'], document.createNode({ source: 'upstream' }, { flow: true }));
  }
  const text = document.toString({ lineWidth: 0 });
  // The comments show the stores that were not chosen.
  return text.replace(new RegExp(`^# store: \\{ kind: ${store}, .*\n`, 'm'), '');
}
