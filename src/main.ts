#!/usr/bin/env node
import cluster from 'node:cluster';

/** Older versions drop header lines of a request, and with them perhaps the length of its body. */
const OLDEST_NODE = { major: 24, minor: 18 };

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major < OLDEST_NODE.major || (major === OLDEST_NODE.major && minor < OLDEST_NODE.minor)) {
  const needed = `Node ${OLDEST_NODE.major}.${OLDEST_NODE.minor} or newer is needed`;
  process.stderr.write(`oncegate: ${needed}, and ${process.execPath} is Node ${process.versions.node}.\n`);
  process.exit(1);
}

// Not before the check, because an old Node cannot load these.
const { explainFailure } = await import('./cli/exit.ts');
const { runCommand } = await import('./cli/run-command.ts');

try {
  await runCommand(process.argv.slice(2));
} catch (error) {
  const { message, code } = explainFailure(error);
  if (cluster.isWorker) await (await import('./workers/worker.ts')).reportFailure(message, code);
  else process.stderr.write(`${message.replace(/^/gm, 'oncegate: ')}\n`);
  process.exit(code);
}
