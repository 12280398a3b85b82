import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { makeCalls, PAYOUT, payoutHeaders, payoutUrl } from './lib/calls.mjs';

await makeCalls(
  async (call) => {
    const headers = { ...payoutHeaders(call), 'Content-Type': 'application/json' };
    const { stdout } = await promisify(execFile)('curl', [
      ...['--silent', '--show-error', '--fail', '--retry', '3', '--retry-all-errors'],
      ...['--max-time', String(call.timeoutMs / 1000), '--data', JSON.stringify(PAYOUT)],
      ...Object.entries(headers).flatMap(([name, value]) => ['--header', `${name}: ${value}`]),
      payoutUrl(call),
    ]);
    return JSON.parse(stdout);
  },
  // With --fail it prints no body; the last line of its messages has the status.
  ({ code, stderr }) => ({
    error: `exit code ${code}`,
    status: Number(/returned error: (\d{3})\s*$/.exec(stderr)?.[1]) || undefined,
  }),
);
