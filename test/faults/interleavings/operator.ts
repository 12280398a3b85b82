import { resolve, type StoredResolution } from '../../../src/ledger/rules.ts';
import { systemRandom } from '../../../src/lib/random.ts';
import type { Held } from '../../../src/store/register.ts';
import { responseOf, scopeUnderTest } from './process.ts';
import type { World } from './world.ts';

const OPERATORS_RESULT = responseOf('what the operator found');
const note = { by: 'ada', reason: 'the books show it' };

/**
 * How an operator may resolve the key now: as completed whenever the rules allow it, as released only if nothing was sent. A
 * request that was sent may have been executed; no gateway can protect from an operator who releases it.
 */
export function choicesOfOperator(
  world: World,
): ['released' | 'completed', resolve: () => Promise<unknown>][] {
  const { register, held, sent, setup } = world;
  if (!held) return [];
  const { broken } = setup;
  // A rule that ignores whether the owner is alive.
  const record = { ...held.record, ownerGaveUp: broken?.resolvesLiving ?? held.record.ownerGaveUp };
  const writeOf = (resolution: StoredResolution) => {
    const stamp = { revision: systemRandom.token(), wallMs: 0 };
    const { token } = record;
    const { write } = resolve(
      { ...held, record } as Held,
      token,
      resolution,
      note,
      systemRandom.token(),
      stamp,
    );
    return write?.kind === 'replace' ? write : undefined;
  };
  const choices = [
    ['completed', { as: 'completed', completion: { kind: 'response', response: OPERATORS_RESULT } }],
    ['released', { as: 'released' }],
  ] as const;
  return choices.flatMap(([said, resolution]) => {
    const write = said === 'released' && sent.length > 0 ? undefined : writeOf(resolution);
    return write ? [[said, () => register.replace(scopeUnderTest, write)]] : [];
  });
}
