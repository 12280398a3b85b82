/** Runs a copy, and says each line of its progress. Stops for good at the line that begins with `stopAt`, to be killed there. */
import { Copy } from '../../src/ledger/copy/copy.ts';
import { systemClock } from '../../src/lib/clock.ts';
import type { StorePlace } from '../support/open-store.ts';
import { openSide } from './copy-side.ts';

const { from, to, stopAt } = JSON.parse(process.argv[2] ?? '') as {
  from: StorePlace;
  to: StorePlace;
  stopAt: string;
};
process.stdin.once('end', () => process.exit()).resume();
const copy = new Copy({
  ...{ from: await openSide(from), to: await openSide(to), clock: systemClock },
  async onProgress(line) {
    if (!line.startsWith(stopAt)) return;
    process.stdout.write('stopped\n');
    await new Promise(() => {});
  },
});
await copy.run();
