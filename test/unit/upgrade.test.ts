import { expect, it } from 'vitest';
import { compareVersions } from '../../src/cli/upgrade.ts';

it.each([
  ['1.4.2', '1.4.2', /this is 1\.4\.2$/, false],
  ['1.4.9', '1.4.2', /: nothing has to be done$/, false],
  ['1.3.0', '1.4.2', /: nothing has to be done$/, false],
  ['1.2.0', '1.4.2', /: stop all gateways of that version before you start this one$/, false],
  ['1.5.0', '1.4.2', /, which reads what that one wrote$/, false],
  ['1.6.0', '1.4.2', /: go back one minor version at a time$/, true],
  ['1.9.9', '2.0.0', /: follow "Upgrade" in CHANGELOG\.md$/, false],
  ['2.0.0', '1.9.9', /, which is older by a major version: do not start it$/, true],
  ['1.10.0', '1.9.0', /, which reads what that one wrote$/, false],
  [undefined, '1.0.0', /^last used by a version before 1\.0\.0; .*: follow "Upgrade"/, false],
  ['nightly', '1.0.0', /, and one of both is not a released version$/, false],
] as const)('a store that %s used last, and version %s', (usedBy, version, says, needsAttention) => {
  const { detail, ...rest } = compareVersions(usedBy, version);
  expect(detail).toMatch(says);
  expect(rest).toEqual({ needsAttention });
});
