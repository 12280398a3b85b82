import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { ShownRecord } from '../../doubts/record-view.ts';
import { type Answer, api, type Refused } from '../api.ts';
import type { FindRequest } from '../contract.ts';
import { Field, ViewHeading } from '../parts.tsx';
import { linkToRecord } from '../router.ts';
import { announce } from '../store.ts';
import { count, recordState, trouble } from '../words.ts';
import { RecordPanel } from './record.tsx';

/** @param recordId the record that the address names */
export function LookUpView({ recordId }: { recordId: string | undefined }) {
  const [found, setFound] = useState<ShownRecord>();
  const [problem, setProblem] = useState<string>();
  /** Records to choose from, because what was asked names several. */
  const [several, setSeveral] = useState<readonly string[]>([]);

  const newest = useRef<Promise<unknown>>(undefined);

  const show = async (asked: Promise<Answer<ShownRecord>>) => {
    newest.current = asked;
    const answer = await asked;
    // The person has asked something else meanwhile.
    if (newest.current !== asked) return answer;
    setProblem(wordsFor(answer));
    setSeveral(answer.kind === 'refused' && answer.problem.code === 'ambiguous' ? idsIn(answer) : []);
    setFound(answer.kind === 'ok' ? answer.value : undefined);
    if (answer.kind !== 'ok') return answer;
    const { record, recordId: named } = answer.value;
    announce(`Found: ${record ? recordState(record).word : 'only the audit trail is left'}.`);
    if (location.hash !== linkToRecord(named)) location.hash = linkToRecord(named);
    return answer;
  };
  const read = (named: string) => show(api.record(named));
  const findById = async (id: string, isAll: boolean) => {
    // A request id may have hexadecimal digits only, too.
    if (RECORD_ID.test(id) && !isAbsent(await read(id))) return;
    setFound(undefined);
    const answer = await recordsStartedBy(id, isAll);
    const recordIds = answer.kind === 'ok' ? answer.value : [];
    if (recordIds.length === 1) return void read(String(recordIds[0]));
    setSeveral(recordIds);
    setProblem(trouble(answer) ?? startedInWords(recordIds.length, isAll));
  };
  useEffect(() => {
    if (recordId && recordId !== found?.recordId) void read(recordId);
    if (!recordId) setFound(undefined);
  }, [recordId]);
  useLayoutEffect(() => document.getElementById('record')?.focus(), [found]);

  return (
    <>
      <ViewHeading>Look up</ViewHeading>
      <div class="panels">
        <FindForm find={(request) => void show(api.find(request))} />
        <IdForm find={findById} />
      </div>
      {problem && (
        <p class="notice warn" role="alert">
          {problem}
        </p>
      )}
      {several.length > 0 && (
        <ul>
          {several.map((id) => (
            <li key={id}>
              <a href={linkToRecord(id)} class="mono">
                {id}
              </a>
            </li>
          ))}
        </ul>
      )}
      {found && <RecordPanel found={found} reread={() => void read(found.recordId)} />}
    </>
  );
}

const idsIn = (answer: Refused): readonly string[] => answer.problem.recordIds ?? [];

const isAbsent = (answer: Answer<unknown>): answer is Refused =>
  answer.kind === 'refused' && answer.problem.code === 'absent';

function wordsFor(answer: Answer<ShownRecord>): string | undefined {
  if (!isAbsent(answer)) return trouble(answer);
  const [recordId] = idsIn(answer);
  return (
    `The gateway has no record of this key${recordId ? ` (record id ${recordId})` : ''}. Either no protected request of this merchant had it, or its request was not ` +
    'sent (a backend that could not be reached, for example), or the record has expired. Merchant codes and keys are ' +
    'compared letter by letter.'
  );
}

/** The ids of the records that a request has started. The store is asked for page after page. */
async function recordsStartedBy(requestId: string, isAll: boolean): Promise<Answer<string[]>> {
  const found = new Set<string>();
  let cursor: string | undefined;
  do {
    const more = cursor === undefined ? {} : { cursor };
    const answer = await api.startedBy({ request_id: requestId, open: String(!isAll), ...more });
    if (answer.kind !== 'ok') return answer;
    for (const record of answer.value.records) found.add(record.recordId);
    cursor = answer.value.cursor;
  } while (cursor !== undefined);
  return { kind: 'ok', value: [...found] };
}

function startedInWords(records: number, isAll: boolean): string {
  if (records > 0) return `${count(records, 'record')} were started by this request.`;
  return isAll
    ? 'No record was started by this request.'
    : 'This request started no record that is not completed. Search the completed ones too.';
}

/** Values by the names of the controls, or undefined if one is empty; then the first of those gets the focus. */
function filled(form: HTMLFormElement, names: readonly string[]): string[] | undefined {
  const inputs = names.map((name) => form.elements.namedItem(name) as HTMLInputElement);
  const empty = inputs.find(({ value }) => value.trim() === '');
  empty?.focus();
  return empty ? undefined : inputs.map(({ value }) => value.trim());
}

function FindForm({ find }: { find(request: FindRequest): void }) {
  const [mistake, setMistake] = useState<string>();
  const submit = (event: { preventDefault(): void; currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const [merchant, key] = filled(event.currentTarget, ['merchant', 'key']) ?? [];
    setMistake(key === undefined ? 'Both the merchant code and the key are needed.' : undefined);
    const layer = (event.currentTarget.elements.namedItem('layer') as HTMLInputElement).value.trim();
    if (merchant !== undefined && key !== undefined) void find({ merchant, key, ...(layer && { layer }) });
  };
  return (
    <form class="panel" onSubmit={submit} noValidate aria-labelledby="by-key">
      <h2 id="by-key">By merchant and key</h2>
      <div class="columns">
        <Field id="find-merchant" label="Merchant code">
          {(attributes) => (
            <input {...attributes} name="merchant" required autocomplete="off" spellcheck={false} />
          )}
        </Field>
        <Field id="find-key" label="Idempotency key" mistake={mistake}>
          {(attributes) => (
            <input {...attributes} name="key" required autocomplete="off" spellcheck={false} />
          )}
        </Field>
        <Field id="find-layer" label="Layer (optional)" hint="if it is not this gateway's">
          {(attributes) => <input {...attributes} name="layer" autocomplete="off" spellcheck={false} />}
        </Field>
      </div>
      <div class="buttons">
        <button type="submit" class="main">
          Look up
        </button>
      </div>
    </form>
  );
}

/** Whole, or its first digits. */
const RECORD_ID = /^[0-9a-f]{4,48}$/;

function IdForm({ find }: { find(id: string, isAll: boolean): Promise<void> }) {
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: { preventDefault(): void; currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const form = event.currentTarget;
    const [id] = filled(form, ['id']) ?? [];
    if (id === undefined || isBusy) return;
    setBusy(true);
    await find(id, (form.elements.namedItem('all') as HTMLInputElement).checked);
    setBusy(false);
  };
  return (
    <form class="panel" onSubmit={submit} noValidate aria-labelledby="by-id">
      <h2 id="by-id">By id</h2>
      <Field
        id="find-id"
        label="Record id or request id"
        hint="As the log has them: of a record id, the first digits are enough. A request id is that of the first request with the key."
      >
        {(attributes) => (
          <input {...attributes} name="id" class="mono" required autocomplete="off" spellcheck={false} />
        )}
      </Field>
      <label class="choice">
        <input type="checkbox" name="all" />
        <span>Search completed keys for the request id too, which reads the whole store</span>
      </label>
      <div class="buttons">
        <button type="submit" aria-disabled={isBusy}>
          Look up the id
        </button>
        <span role="status">{isBusy ? 'Searching …' : ''}</span>
      </div>
    </form>
  );
}
