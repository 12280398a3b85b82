import { expect, it } from 'vitest';
import { manifest } from '../../scripts/package/manifest.ts';

it('npm refuses to publish a package that does not say where its repository is', () => {
  expect(manifest()).toMatchObject({
    private: true,
    repository: { url: 'git+https://REPOSITORY.git' },
    bugs: 'https://REPOSITORY/issues',
  });
  const address = 'https://git.example.com/payments/oncegate';
  const filled = manifest(address);
  expect(filled).toMatchObject({
    repository: { type: 'git', url: `git+${address}.git` },
    homepage: `${address}#readme`,
    bugs: `${address}/issues`,
  });
  expect(filled).not.toHaveProperty('private');
  for (const wrong of [
    '',
    'REPOSITORY',
    'https://REPOSITORY',
    'http://git.example.com/oncegate',
    `${address}/`,
  ])
    expect(() => manifest(wrong)).toThrow('--repository must be an address');
});
