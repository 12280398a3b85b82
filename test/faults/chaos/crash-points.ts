/**
 * Loaded before the gateway's command (`node --import`). It lets the suite kill or stop the process exactly between two steps,
 * and reports each first byte. The code of the gateway is not changed.
 */
import diagnostics from 'node:diagnostics_channel';
import { writeSync } from 'node:fs';
import { Ledger } from '../../../src/ledger/ledger.ts';
import type { Owner } from '../../../src/store/contract.ts';
import { type Arm, type CrashPoint, type GatewayNote, NOTES_FD } from './crash-point.ts';
import './exit-with-suite.ts';

type Named = Pick<Extract<GatewayNote, { note: 'sends' }>, 'merchant' | 'key'> & Pick<Owner, 'scope'>;

let armed: Arm | undefined;

/** A pipe, because its reader still gets what a process had written before it was killed. */
const writeNote = (note: GatewayNote) => writeSync(NOTES_FD, `${JSON.stringify(note)}\n`);

function reached(point: CrashPoint, execution?: Named): void {
  if (armed?.at !== point) return;
  if (armed.act === 'pause') {
    if (!execution || (armed.of ?? nameOf(execution)) !== nameOf(execution)) return;
    const { merchant, key, scope } = execution;
    armed = undefined;
    writeNote({ note: 'paused', merchant, key, scope });
    process.kill(process.pid, 'SIGSTOP');
    return;
  }
  process.kill(process.pid, 'SIGKILL');
  // The signal is delivered before the system call returns, so nothing runs after this line.
  for (;;);
}

const nameOf = ({ merchant, key }: Named): string => `${merchant} ${key}`;

const { start, complete } = Ledger.prototype;
Ledger.prototype.start = async function (execution) {
  const answer = await start.call(this, execution);
  if (answer.kind === 'started') reached('after_start', execution);
  return answer;
};
Ledger.prototype.complete = async function (...args) {
  reached('before_complete');
  const completed = await complete.apply(this, args);
  reached('after_complete');
  return completed;
};

// Published right before the first byte is written.
diagnostics.subscribe('undici:client:sendHeaders', (message) => {
  const { headers } = message as { headers: string };
  const key = /^x-service-idempotency: (.*)\r$/im.exec(headers)?.[1];
  const merchant = /^x-merchant-code: (.*)\r$/im.exec(headers)?.[1];
  if (key !== undefined && merchant !== undefined) writeNote({ note: 'sends', merchant, key });
});
// Published when the last byte of a request with a body was written.
diagnostics.subscribe('undici:request:bodySent', () => reached('after_send'));

process.on('message', (arm: Arm) => {
  armed = arm;
  if (arm.at === 'nowhere') writeNote({ note: 'disarmed', order: arm.order });
});
process.channel?.unref();
