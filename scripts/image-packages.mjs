// Leaves in package.json what the image needs beside the bundle. npm then takes the versions in the lock file. With the argument
// "tracing", OpenTelemetry too. It is plain JavaScript without packages, because the image has none when it runs.
import { readFileSync, writeFileSync } from 'node:fs';

const { name, version, optionalDependencies } = JSON.parse(readFileSync('package.json', 'utf8'));
const isNeeded = (library) =>
  library === 'pg' || (process.argv.includes('tracing') && library.startsWith('@opentelemetry/'));
const dependencies = Object.fromEntries(
  Object.entries(optionalDependencies).filter(([library]) => isNeeded(library)),
);
writeFileSync('package.json', JSON.stringify({ name, version, dependencies }));
