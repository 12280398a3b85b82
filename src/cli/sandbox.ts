import { runSandbox } from '../sandbox/main.ts';

/** The sandbox has its own options and its own help. */
export async function sandbox(args: string[]): Promise<void> {
  await runSandbox(args);
}
