/**
 * Loaded before the gateway's own command (`node --import`): the process stops itself (SIGSTOP) at one point of the next
 * execution after {@link FILE} was created. The code of the gateway is not changed.
 *
 * `after_start`: the record is durable, and the request has no connection yet. `before_connect`: a connection is about to
 * be opened for the request.
 */
import diagnostics from 'node:diagnostics_channel';
import { rmSync } from 'node:fs';
import { isMainThread } from 'node:worker_threads';
import { Ledger } from '../../../src/ledger/ledger.ts';

const { PAUSE_AT: at, PAUSE_FILE: file = '' } = process.env;

function reached(): void {
  try {
    rmSync(file);
  } catch {
    // Not armed.
    return;
  }
  process.kill(process.pid, 'SIGSTOP');
}

if (isMainThread && at === 'after_start') {
  const { start } = Ledger.prototype;
  Ledger.prototype.start = async function (execution) {
    const answer = await start.call(this, execution);
    if (answer.kind === 'started') reached();
    return answer;
  };
}
if (isMainThread && at === 'before_connect') diagnostics.subscribe('undici:client:beforeConnect', reached);
