import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const MAIN = fileURLToPath(new URL('../../../src/main.ts', import.meta.url));

/** The token of the gateways' admin ports, for this run. */
export const ADMIN_TOKEN = randomBytes(16).toString('hex');

/** A key in doubt, as operators see it. */
export interface Listed {
  recordId: string;
  merchant: string;
  key: string;
}

/** What `oncegate records list --in-doubt` shows. */
export async function listInDoubt(configFile: string): Promise<Listed[]> {
  const args = ['records', 'list', '--in-doubt', '--json', '--limit', '9999999', '--config', configFile];
  const { stdout } = await promisify(execFile)(process.execPath, [MAIN, ...args], { maxBuffer: 2 ** 28 });
  return (JSON.parse(stdout) as { records: Listed[] }).records;
}

/** Looks at a record on the admin port, and resolves it. Returns the error, if any. */
export async function resolveInDoubt(
  adminPort: number,
  id: string,
  as: 'completed' | 'released',
): Promise<string | undefined> {
  const url = `http://127.0.0.1:${adminPort}/records/${id}`;
  const headers = { authorization: `Bearer ${ADMIN_TOKEN}`, 'content-type': 'application/json' };
  try {
    const shown = (await (await fetch(url, { headers })).json()) as {
      record?: { execution?: string } | null;
    };
    const execution = shown.record?.execution ?? 'none';
    const body = JSON.stringify({ as, by: 'the fault suite', reason: 'by the ledger', execution });
    const answer = await fetch(`${url}/resolve`, { method: 'POST', headers, body });
    return answer.ok ? undefined : `${answer.status} ${await answer.text()}`;
  } catch (error) {
    // A gateway that has died is a finding, and must not prevent the verdict.
    return String((error as Error).cause ?? error);
  }
}
