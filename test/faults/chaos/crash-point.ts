/** Places between two steps of an execution at which the suite can end a gateway's process. */
export const CRASH_POINTS = [
  'after_claim',
  'after_begin',
  'after_send',
  'before_settle',
  'after_settle',
] as const;
export type CrashPoint = (typeof CRASH_POINTS)[number];

/** From the suite to the gateway's process: die at this point, the next time that it is reached; or live on. */
export interface Arm {
  crashAt: CrashPoint | 'nowhere';
}
