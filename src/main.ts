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
if (code !== 0) process.exit(code);
