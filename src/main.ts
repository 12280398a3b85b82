#!/usr/bin/env node
/** Older versions drop header lines of a request, which allows request smuggling. */
const OLDEST_NODE = { major: 24, minor: 18 };

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major < OLDEST_NODE.major || (major === OLDEST_NODE.major && minor < OLDEST_NODE.minor)) {
  const needed = `Node ${OLDEST_NODE.major}.${OLDEST_NODE.minor} or newer is needed`;
  process.stderr.write(`oncegate: ${needed}, and ${process.execPath} is Node ${process.versions.node}.\n`);
  process.exit(1);
}

// Imported only now: an old Node may be unable to parse it.
const { runCommand } = await import('./cli/run.ts');
const code = await runCommand(process.argv.slice(2), process);
if (code !== 0) process.exit(code);
