/** `node scripts/compile-bundle.ts BUNDLE`: starts a gateway from the bundle, and keeps the code that V8 compiled for that. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { runCommand } from '../src/cli/run.ts';
import { compiledCodeFile, loadBundle } from '../src/lib/load-bundle.ts';
import { put } from './bundle-files.ts';

const [bundle = ''] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'oncegate-bundle-'));
const config = join(folder, 'gateway.yaml');
const keys = join(folder, 'keys.yaml');
writeFileSync(keys, `merchants: [{ code: M, keys: [{ id: K, hash: "hmac-sha256:${'0'.repeat(64)}" }] }]`);
writeFileSync(
  config,
  `listen: { host: 127.0.0.1, port: 0 }
admin: { port: 0 }
upstream: { url: http://127.0.0.1:9 }
store: { kind: sqlite, path: ${folder}/data }
auth: { pepper: ${'-'.repeat(32)}, keys: { source: file, path: ${keys} } }
`,
);
const { script, exports } = loadBundle(bundle);
const command = exports as { runCommand: typeof runCommand };
const code = await command.runCommand(['serve', '--config', config], process);
if (code === 0) put(compiledCodeFile(bundle), script.createCachedData());
rmSync(folder, { recursive: true });
process.exit(code);
