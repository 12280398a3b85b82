/** Points between two steps of an execution at which the suite can kill or stop a gateway's process. */
export const CRASH_POINTS = [
  /** The record is durable, and no byte was sent. */
  'after_start',
  /** The whole request was handed to the kernel. */
  'after_send',
  /** The backend has answered. */
  'before_complete',
  /** The result is durable, and was not yet sent to the merchant. */
  'after_complete',
] as const;
export type CrashPoint = (typeof CRASH_POINTS)[number];

/** A command of the suite to a gateway's process: what to do when the process next reaches this point. */
export type Arm =
  | { at: CrashPoint; act: 'die' }
  /** The process stops itself (SIGSTOP). `of`: only for this merchant and key, separated by a space. */
  | { at: CrashPoint; act: 'pause'; of?: string | undefined }
  /** The process confirms this one with the same number. */
  | { at: 'nowhere'; order: number };

/** The descriptor on which a gateway's process writes its notes, one line of JSON each. */
export const NOTES_FD = 4;

export type GatewayNote =
  /** The process is about to stop itself in this execution. */
  | { note: 'paused'; merchant: string; key: string; scope: string }
  /** The process keeps running: the order before this one has no effect any more. */
  | { note: 'disarmed'; order: number }
  /** The process is about to send the first byte of this request. */
  | { note: 'sends'; merchant: string; key: string };
