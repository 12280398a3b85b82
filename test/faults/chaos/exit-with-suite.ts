/** Loaded before a process of the suite, so that the process exits with the suite. */
process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'));
process.channel?.unref();
