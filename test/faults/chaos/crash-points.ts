/**
 * Loaded before the gateway's command (`node --import`). It lets the suite kill or stop the process exactly between two steps,
 * and reports each first byte. The code of the gateway is not changed.
 */
import diagnostics from 'node:diagnostics_channel';
import { writeSync } from 'node:fs';
import { Ledger } from '../../../src/ledger/ledger.ts';
import { type Arm, type CrashPoint, type GatewayNote, machineMs, NOTES_FD } from './crash-point.ts';
import './exit-with-suite.ts';

let armed: Arm | undefined;

/** A pipe, because its reader still gets what a process had written before it was killed. */
const writeNote = (note: GatewayNote) => writeSync(NOTES_FD, `${JSON.stringify(note)}\n`);

function reached(point: CrashPoint, of?: { merchant: string; key: string }): void {
  if (armed?.at !== point || machineMs() > armed.untilMs) return;
  const { act } = armed;
  armed = undefined;
  if (act === 'SIGSTOP' && of) writeNote({ note: 'stops', merchant: of.merchant, key: of.key });
  // It is delivered before the system call returns, so nothing runs in between.
  process.kill(process.pid, act);
}

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
});
process.channel?.unref();
