import type { Resolution } from '../../../src/store/contract.ts';
import { responseOf, scopeUnderTest } from './process.ts';
import type { World } from './world.ts';

const OPERATORS_RESULT = 'what the operator found';

/**
 * How an operator may resolve the key now: as completed whenever the store allows it, as released only if nothing was sent. A
 * request that was sent may have been executed; no gateway can protect from an operator who releases it.
 */
export function choicesOfOperator(world: World): ['released' | 'completed', resolve: () => void][] {
  const { reference, sent } = world;
  const record = reference.at(scopeUnderTest);
  if (!record) return [];
  const owner = { scope: scopeUnderTest, token: record.token };
  const by =
    (resolution: Resolution) =>
    (on = reference) => {
      world.setup.broken?.resolve?.(on, owner);
      return on.resolve(owner.scope, owner.token, resolution);
    };
  const completed = by({
    as: 'completed',
    completion: { kind: 'response', response: responseOf(OPERATORS_RESULT) },
  });
  if (completed(reference.clone()) !== 'ok') return [];
  const released = by({ as: 'released' });
  return sent.length > 0
    ? [['completed', completed]]
    : [
        ['completed', completed],
        ['released', released],
      ];
}
