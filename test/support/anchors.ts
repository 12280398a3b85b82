import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT, read } from './repository.ts';

/** The anchors that GitHub gives to the headings of a document. It counts headings that have the same anchor. */
export function anchorsOf(text: string): string[] {
  const seen = new Map<string, number>();
  return [...text.matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) => {
    const anchor = heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-');
    const times = seen.get(anchor) ?? 0;
    seen.set(anchor, times + 1);
    return times === 0 ? anchor : `${anchor}-${times}`;
  });
}

/** Whether there is no such file, or no such heading in it. `target` is a path from the root, perhaps with an anchor. */
export function leadsNowhere(target: string): boolean {
  const [path = '', anchor] = target.split('#');
  if (!existsSync(join(ROOT, path))) return true;
  return anchor !== undefined && !anchorsOf(read(path)).includes(anchor);
}
