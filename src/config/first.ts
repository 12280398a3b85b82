import { readFileSync } from 'node:fs';
import { parseDocument } from 'yaml';
import { programFile } from '../lib/program.ts';

/** What a first configuration says. Without a key file, the backend has the secret keys. */
export interface FirstConfig {
  backend: string;
  forward: string;
  dataFolder: string;
  keyFile: string | undefined;
}

/** The text of a first configuration: `config/gateway.init.yaml` and its comments, with these values. */
export function firstConfig({ backend, forward, dataFolder, keyFile }: FirstConfig): string {
  const document = parseDocument(readFileSync(programFile('../config/gateway.init.yaml'), 'utf8'));
  document.setIn(['upstream', 'url'], backend);
  document.setIn(['store', 'path'], dataFolder);
  document.setIn(['auth', 'forward'], forward);
  document.setIn(['auth', 'keys', 'path'], keyFile);
  if (forward !== 'replace') document.deleteIn(['auth', 'replaceWith']);
  if (keyFile === undefined) {
    document.deleteIn(['auth', 'pepper']);
    document.setIn(['auth', 'keys'], document.createNode({ source: 'upstream' }, { flow: true }));
  }
  return document.toString({ lineWidth: 0 });
}
