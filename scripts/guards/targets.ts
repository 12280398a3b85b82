import type { Guard } from '../guards.ts';

const FILE = 'src/requests/target.ts';
const AMBIGUITY = 'test/unit/operations-target.test.ts';
const LOOKALIKES = 'test/unit/operations-lookalikes.test.ts';

/** Checks of paths that a backend could read differently than the gateway. */
export const targetGuards: readonly Guard[] = [
  {
    file: FILE,
    without: 'a path passes whose bytes a lenient reader decodes to a slash',
    text: "if (decoded === undefined) return 'encoded bytes that are not UTF-8';",
    replacement: 'if (decoded === undefined) return undefined;',
    test: AMBIGUITY,
    named: 'an overlong slash of two bytes is not UTF-8',
  },
  {
    file: FILE,
    without: 'a path passes with a character that a backend may turn into a slash',
    text: 'if (LIKE_A_SEPARATOR.test(decoded))',
    replacement: 'if (LIKE_A_SEPARATOR.test(path))',
    test: AMBIGUITY,
    named: 'every character with a slash or a backslash in its compatibility form is refused',
  },
  {
    file: FILE,
    without: 'a dot segment of other dots than ASCII passes',
    text: 'found.test(compatible))',
    replacement: 'found.test(decoded))',
    test: AMBIGUITY,
    named: '/x/%E2%80%A4',
  },
  {
    file: FILE,
    without: "a directory's index file avoids the operations of its directory",
    text: 'return distinct(tidyReadings(path).map(withoutFileName));',
    replacement: 'return tidyReadings(path);',
    test: LOOKALIKES,
    named: 'a directory and its index file are lookalikes',
  },
  {
    file: FILE,
    without: 'a path parameter hides a declared path',
    text: 'const beginnings = /[?#]/.test(plain)',
    replacement: "const beginnings = plain === ''",
    test: LOOKALIKES,
    named: '/;x%3fx/v1/index.php',
  },
  {
    file: FILE,
    without: 'the name of an NTFS stream hides a declared path',
    text: 'const beginnings = /[?#]/.test(plain)',
    replacement: "const beginnings = plain === ''",
    test: LOOKALIKES,
    named: 'a stream name with a question mark in it can be removed before the query',
  },
  {
    file: FILE,
    without: 'a Kelvin sign or a fullwidth letter hides a declared path',
    text: 'lowerCase(compatibleForm(decode(path) ?? decodeAscii(path)))',
    replacement: '(decode(path) ?? decodeAscii(path)).toLowerCase()',
    test: LOOKALIKES,
    named: 'a character whose compatibility form or other case is ASCII is read as that',
  },
  {
    file: FILE,
    without: 'a path with many dots blocks the process',
    text: '(?<![.\\s])[.\\s]+',
    replacement: '[.\\s]+',
    test: 'test/linear/parsers.test.ts',
    named: 'tidyReadings reads a target in linear time',
  },
  {
    file: 'src/requests/members.ts',
    without: 'a long name in a body blocks the process',
    text: 'reading.length <= MAX_SHRINKING * word.length &&',
    replacement: '',
    test: 'test/linear/body-parsers.test.ts',
    named: 'members of a JSON body are found in linear time',
  },
];
