import type { Desk } from '../../src/doubts/desk.ts';
import type { ShownRecord } from '../../src/doubts/record-view.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import { run } from './command.ts';

/** The execution that an operator sees who looks at the record now. `none`: there is no record. */
export async function executionOf(desk: Desk, recordId: RecordId): Promise<string> {
  const shown = await desk.show(recordId);
  return (shown.kind === 'found' && shown.value.record?.execution) || 'none';
}

/** The same on the command line, as options of `records resolve`. */
export async function executionShown(config: string, key: string): Promise<string[]> {
  const named = ['--merchant', 'M-ALPHA', '--key', key, '--config', config];
  const { stdout } = await run(['records', 'show', ...named, '--json']);
  return ['--execution', (JSON.parse(stdout) as ShownRecord).record?.execution ?? 'none'];
}
