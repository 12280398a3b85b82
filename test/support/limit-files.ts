import { execFileSync } from 'node:child_process';

/**
 * From now on the files of this process may not grow beyond `bytes`: writes fail with EFBIG, as they fail with ENOSPC on a
 * full disk. The hard limit stays, so that the limit can be raised again.
 *
 * @param as the user of the process, if it is another one
 */
export function limitFiles(
  pid: number,
  bytes: number | string,
  as: { uid?: number; gid?: number } = {},
): void {
  execFileSync('prlimit', ['--pid', `${pid}`, `--fsize=${bytes}:unlimited`], as);
}
