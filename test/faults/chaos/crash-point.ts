/** Places between two steps of an execution at which the suite can end or stop a gateway's process. */
export const CRASH_POINTS = [
  /** The record is durable, and no byte was sent. */
  'after_start',
  /** The whole request was handed to the kernel. */
  'after_send',
  /** The backend has answered. */
  'before_complete',
  /** The result is durable, and the merchant has no answer. */
  'after_complete',
] as const;
export type CrashPoint = (typeof CRASH_POINTS)[number];

/** From the suite to the gateway's process: what to do when this point is reached the next time. */
export type Arm =
  | { at: CrashPoint; act: 'die' }
  /** The process stops itself (SIGSTOP). `of`: only for this merchant and key, with a space between. */
  | { at: CrashPoint; act: 'pause'; of?: string | undefined }
  | { at: 'nowhere' };

/** The descriptor on which a gateway's process writes its notes, one line of JSON each. */
export const NOTES_FD = 4;

export type GatewayNote =
  /** The process stops itself in this execution. */
  | { note: 'paused'; merchant: string; key: string; scope: string }
  /** The first byte of this request goes out now. */
  | { note: 'sends'; merchant: string; key: string };
