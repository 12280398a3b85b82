/**
 * Preloaded into a command (`node --import`): the process stops itself (SIGSTOP) right before it writes line
 * {@link LINE} of its standard output. The code of the command is not changed.
 */
import { isMainThread } from 'node:worker_threads';

const LINE = Number(process.env.STOP_BEFORE_LINE);

if (isMainThread) {
  const { stdout } = process;
  const write = stdout.write.bind(stdout) as (...args: unknown[]) => boolean;
  let lines = 0;
  stdout.write = (...args: unknown[]) => {
    const before = lines;
    lines += String(args[0]).split('\n').length - 1;
    if (before < LINE && lines >= LINE) process.kill(process.pid, 'SIGSTOP');
    return write(...args);
  };
}
