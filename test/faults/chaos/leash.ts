/** Loaded before a process of the suite: it does not outlive the suite. */
process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'));
process.channel?.unref();
