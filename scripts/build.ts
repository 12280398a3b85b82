/** `npm run build`: compiles src to dist, and copies the files that are not TypeScript. */
import { spawnSync } from 'node:child_process';
import { chmodSync, cpSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');

rmSync(dist, { recursive: true, force: true });
const { status } = spawnSync(join(root, 'node_modules', '.bin', 'tsc'), ['-p', 'tsconfig.build.json'], {
  cwd: root,
  stdio: 'inherit',
});
if (status !== 0) process.exit(status ?? 1);
cpSync(join(root, 'src'), dist, {
  recursive: true,
  filter: (path) => !path.endsWith('.ts'),
});
chmodSync(join(dist, 'main.js'), 0o755);
