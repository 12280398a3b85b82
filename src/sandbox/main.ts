import { runSandbox } from './command.ts';

await runSandbox(process.argv.slice(2));
