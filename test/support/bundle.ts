import { bundleCommand } from '../../scripts/bundle.ts';

/** Run by vitest before the suites that start processes: they start the delivered command. */
export async function setup(): Promise<void> {
  await bundleCommand();
}
