/**
 * The part of a store in a copy of its records.
 *
 * - copying: the source, which serves. It logs the scope of each start.
 * - moved: the source after the switch. It starts nothing, and owners still write what became of their executions.
 * - receiving: the destination before the switch. It starts nothing.
 * - undoing: the destination of a copy that is being undone. It starts nothing.
 * - opened: the destination after the switch. It serves like a store without a mark.
 */
export type MarkState = 'copying' | 'moved' | 'receiving' | 'undoing' | 'opened';

/** The mark of a store that has taken part in a copy. A store without a mark serves. */
export interface Mark {
  state: MarkState;
  /** Names the copy. Source and destination have the same one. */
  copyId: string;
  /** Names the run of the command that may write. A later run replaces it, and the earlier one can write no more. */
  runId: string;
}

const STATES: Record<MarkState, string> = {
  copying: 'c',
  moved: 'm',
  receiving: 'r',
  undoing: 'u',
  opened: 'o',
};

/** The text that a store keeps. Its first character is the state, which the Lua scripts and the health check read. */
export const encodeMark = ({ state, copyId, runId }: Mark): string => `${STATES[state]} ${copyId} ${runId}`;

/** @throws if this version does not write such a mark */
export function decodeMark(text: string): Mark {
  const [code, copyId, runId, ...more] = text.split(' ');
  const [state] = Object.entries(STATES).find(([, each]) => each === code) ?? [];
  if (!state || !copyId || !runId || more.length > 0)
    throw new Error(`the store has the mark of a copy that this version does not know: ${text}`);
  return { state: state as MarkState, copyId, runId };
}

/** Must the log be emptied with this change? Also when a copy is undone, because its log is of no use any more. */
export const beginsLog = (from: Mark | undefined, to: Mark | undefined): boolean =>
  to === undefined || (to.state === 'copying' && from?.state !== 'copying');

/** What the mark means for a gateway. `closed`: it can start nothing. `warning`: it serves, and an operator should know. */
export function meaningOf(text: string | undefined): { closed?: string; warning?: string } {
  switch (text?.[0]) {
    case undefined:
    case STATES.opened:
      return {};
    case STATES.copying:
      return {
        warning:
          'a copy of the records to another store is running or was interrupted: repeat it, or undo it with records copy --undo',
      };
    case STATES.moved:
      return { closed: 'the records were moved to another store, and this one starts nothing' };
    default:
      return { closed: 'the records of another store are being copied to this one' };
  }
}
