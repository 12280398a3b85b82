import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './root.ts';

interface Installed {
  version: string;
  license?: string;
  dev?: boolean;
  optional?: boolean;
}

/** These are in the console's page, and not needed at run time otherwise. */
const IN_PAGE = ['node_modules/preact', 'node_modules/uplot'];

/** The licences of the packages in the bundles. They must be distributed with them. */
export function licences(): string {
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
  const parts = Object.entries<Installed>(lock.packages)
    .filter(([path, { dev, optional }]) => path !== '' && (IN_PAGE.includes(path) || !(dev || optional)))
    .map(([path, { version, license }]) => {
      const name = path.slice(path.lastIndexOf('node_modules/') + 13);
      return `## ${name} ${version}: ${license}\n${textOf(join(root, path))}`;
    });
  return `# Licences of the packages in oncegate\n\n${parts.sort().join('\n')}`;
}

function textOf(folder: string): string {
  const name = readdirSync(folder).find((file) => /^licen[cs]e/i.test(file));
  return name ? `\n\`\`\`text\n${readFileSync(join(folder, name), 'utf8').trim()}\n\`\`\`\n` : '';
}
