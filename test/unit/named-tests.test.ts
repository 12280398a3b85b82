import { expect, it } from 'vitest';
import { read } from '../support/repository.ts';

/** A file of tests with the titles that a document names behind it: `[file](../test/…): “title”, “title”`. */
const CITED = /\[[^\]]+\]\((?:\.\.\/)+(test\/[\w./-]+\.ts)\)((?:[:,] “[^”]+”)*)/g;

/** Every test, and every group of tests, that the documents claim to exist. */
function namedIn(document: string): { file: string; titles: string[] }[] {
  return [...read(document).matchAll(CITED)].map(([, file = '', titles = '']) => ({
    file,
    titles: [...titles.matchAll(/“([^”]+)”/g)].map(([, title = '']) => title),
  }));
}

it.each([
  ['docs/comparison.md', 15],
  ['docs/threat-model.md', 40],
  ['docs/transactions.md', 7],
  ['docs/adr/0005-dependencies-and-pins.md', 18],
])('%s names tests that there are', (document, least) => {
  const named = namedIn(document);
  expect(named.flatMap(({ titles }) => titles).length).toBeGreaterThanOrEqual(least);
  expect(named.filter(({ titles }) => titles.length === 0).map(({ file }) => file)).toEqual([]);
  const missing = named.flatMap(({ file, titles }) => {
    const source = read(file);
    const isThere = (title: string) =>
      [`'${title}'`, `"${title}"`, `\`${title}\``].some((one) => source.includes(one));
    return titles.filter((title) => !isThere(title)).map((title) => `${file}: ${title}`);
  });
  expect(missing).toEqual([]);
});
