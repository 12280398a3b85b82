#!/usr/bin/env node
import { sentenceForOldNode } from './node-version.ts';

const sentence = sentenceForOldNode();
if (sentence) {
  process.stderr.write(`${sentence}\n`);
  process.exit(1);
}

// Imported only now: an old Node may be unable to parse it.
const { runCommand } = await import('./cli/run.ts');
const code = await runCommand(process.argv.slice(2), process);
const { stdout } = process;
// A pipe takes a long report in the background, and an exit would cut it off.
if (code !== 0 && stdout.writableLength > 0) stdout.write('', () => process.exit(code));
else if (code !== 0) process.exit(code);
