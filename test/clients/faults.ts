/** The path of a client's requests to the backend. */
export type Route = 'gateway' | 'lossy wire' | 'backend down' | 'releases 503';

export interface Fault {
  /** The heading of the column. */
  title: string;
  route: Route;
  /** The sandbox's fault, requested with every attempt. */
  fault?: string;
  /** How long the client waits for an answer. */
  timeoutMs?: number;
  /** How often the backend executes the payment. */
  executions: 0 | 1;
}

/** Longer than any request takes that the test does not delay. */
export const PATIENT_MS = 20_000;

export const FAULTS: readonly Fault[] = [
  { title: 'the answer is lost', route: 'lossy wire', executions: 1 },
  { title: 'the backend is down at first', route: 'backend down', executions: 1 },
  { title: 'the backend is slow', route: 'gateway', fault: 'delay=4000', timeoutMs: 1500, executions: 1 },
  {
    title: 'the backend executes, then resets',
    route: 'gateway',
    fault: 'execute-then-reset',
    executions: 1,
  },
  { title: 'the backend answers 503 once', route: 'gateway', fault: '503-before,once', executions: 0 },
  { title: 'the same, 503 in `release`', route: 'releases 503', fault: '503-before,once', executions: 1 },
];
