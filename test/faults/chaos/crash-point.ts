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
export interface Arm {
  at: CrashPoint;
  act: 'SIGKILL' | 'SIGSTOP';
  /** Later it has no effect any more. See {@link machineMs}. */
  untilMs: number;
}

/** A clock that all processes share. */
export const machineMs = (): number => Number(process.hrtime.bigint() / 1_000_000n);

/** The descriptor on which a gateway's process writes its notes, one line of JSON each. */
export const NOTES_FD = 4;

/** The process is about to stop itself in an execution, or to send its first byte. */
export interface GatewayNote {
  note: 'stops' | 'sends';
  merchant: string;
  key: string;
}
