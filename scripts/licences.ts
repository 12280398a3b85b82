import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { inImage, installed, locked } from './locked.ts';
import { root } from './root.ts';

/** These are in the console's page, and not needed at run time otherwise. */
const IN_PAGE = ['node_modules/preact', 'node_modules/uplot'];

/** The licences of the packages in the bundles and in the image. They must be distributed with them. */
export function licences(): string {
  const inPage = locked.filter(([path]) => IN_PAGE.includes(path));
  const parts = [...installed, ...inPage, ...inImage].map(([path, { version, license }]) => {
    const name = path.slice(path.lastIndexOf('node_modules/') + 13);
    return `## ${name} ${version}: ${license}\n${textOf(join(root, path))}`;
  });
  return `# Licences of the packages in oncegate\n\n${parts.sort().join('\n')}`;
}

function textOf(folder: string): string {
  const name = readdirSync(folder).find((file) => /^licen[cs]e/i.test(file));
  return name ? `\n\`\`\`text\n${readFileSync(join(folder, name), 'utf8').trim()}\n\`\`\`\n` : '';
}
