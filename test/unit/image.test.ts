import { globSync } from 'node:fs';
import { dirname } from 'node:path';
import { expect, it } from 'vitest';
import { parse } from 'yaml';
import { parseConfig } from '../../src/config/load.ts';
import { blocksOf } from '../support/documents.ts';
import { ROOT, read } from '../support/repository.ts';

const DOCUMENT = 'docs/deploying.md';
const DOCKERFILE = read('Dockerfile');

/** The blocks under a heading of Deploying, by their language. */
const shown = (heading: string) =>
  Object.fromEntries(blocksOf(DOCUMENT, heading).map(({ language, text }) => [language, text]));

it('docker run gets the file, the volume, the ports and the secrets of the image and of the configuration beside it', () => {
  const { yaml = '', sh = '' } = shown('With docker run');
  const [, secret = '', file] = /"(\w+)=.*> (\w+)\)$/m.exec(sh) ?? [];
  const { listen, admin, store } = parseConfig(yaml, { [secret]: 'a-token-of-some-length' });
  const [command = ''] = sh.replaceAll('\\\n', ' ').match(/^docker run .*$/m) ?? [];
  const valuesOf = (option: string) =>
    [...command.matchAll(new RegExp(`--${option} "?([^" ]+)`, 'g'))].map(([, value]) => value);
  const [, config = ''] = /^CMD .*"--config", "(.+)"\]$/m.exec(DOCKERFILE) ?? [];
  const [, data = ''] = /^VOLUME (.+)$/m.exec(DOCKERFILE) ?? [];
  // A file that was mounted by itself would stay the old one when it is replaced, and its reload would change nothing.
  expect(valuesOf('volume')).toEqual([`$PWD/etc:${dirname(config)}:ro`, `oncegate-data:${data}`]);
  expect(store).toMatchObject({ path: data, identityFile: expect.stringMatching(`^${data}/`) });
  expect([listen.host, admin.host]).toEqual(['0.0.0.0', '0.0.0.0']);
  const ports = [listen.port, admin.port];
  expect(valuesOf('publish')).toEqual(ports.map((port) => `127.0.0.1:${port}:${port}`));
  expect(DOCKERFILE).toContain(`\nEXPOSE ${ports.join(' ')}\n`);
  expect(valuesOf('env-file')).toEqual([file]);
  expect(sh).toContain(
    `docker exec --env ONCEGATE_SECRET_KEY oncegate node dist/main.js check --config ${config}\n`,
  );
});

it('the image has its tag in every command that builds or runs it', () => {
  const commands = globSync('docs/**/*.md', { cwd: ROOT })
    .flatMap((path) => blocksOf(path))
    .flatMap(
      ({ text }) => text.replaceAll('\\\n', ' ').match(/^ *docker (?:build|run) .*\boncegate\b.*$/gm) ?? [],
    );
  const images = commands.map((command) => /(?<= -t )\S+/.exec(command)?.[0] ?? command.split(' ').at(-1));
  expect(images).toEqual(Array(2).fill(`oncegate:${JSON.parse(read('package.json')).version}`));
});

it('helm install sets values that the chart has, the image among them', () => {
  const { sh = '' } = shown('Helm');
  const set = [...sh.matchAll(/--set ([\w.]+)=/g)].map(([, path = '']) => path);
  expect(set).toContain('image.repository');
  const values = parse(read('deploy/helm/values.yaml'));
  const valueAt = (path: string) => path.split('.').reduce((value, name) => value?.[name], values);
  expect(set.filter((path) => valueAt(path) === undefined)).toEqual([]);
});
