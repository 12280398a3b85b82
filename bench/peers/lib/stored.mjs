// What the peers of our own store: the status and the header fields of an answer in one line of JSON, and its body.
import { answer } from './forward.mjs';

/** As long as a record of oncegate while its request runs. It has no line. */
export const RUNNING = Buffer.alloc(200, '.');

export const storedForm = ({ status, headers, body }) =>
  Buffer.concat([Buffer.from(`${JSON.stringify({ status, headers })}\n`), body]);

/** Answers with what is stored, or with 409 if the request still runs. */
export function answerStored(response, stored) {
  const end = stored.indexOf('\n');
  if (end < 0) return answer(response, { status: 409, headers: {}, body: '' });
  const { status, headers } = JSON.parse(stored.latin1Slice(0, end));
  answer(response, { status, headers, body: stored.subarray(end + 1) });
}
