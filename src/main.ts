#!/usr/bin/env node
import cluster from 'node:cluster';
import { explainFailure } from './cli/exit.ts';
import { runCommand } from './cli/run-command.ts';
import { reportFailure } from './workers/worker.ts';

try {
  await runCommand(process.argv.slice(2));
} catch (error) {
  const { message, code } = explainFailure(error);
  if (cluster.isWorker) await reportFailure(message, code);
  else process.stderr.write(`${message.replace(/^/gm, 'oncegate: ')}\n`);
  process.exit(code);
}
