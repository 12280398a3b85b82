import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { ShownRecord } from '../../doubts/records.ts';
import { type Answer, api, type Refused } from '../api.ts';
import type { FindRequest } from '../contract.ts';
import { Field, ViewHeading } from '../parts.tsx';
import { linkToRecord } from '../router.ts';
import { announce } from '../store.ts';
import { recordState, trouble } from '../words.ts';
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
    if (newest.current !== asked) return;
    setProblem(wordsFor(answer));
    setSeveral(answer.kind === 'refused' && answer.problem.code === 'ambiguous' ? idsIn(answer) : []);
    setFound(answer.kind === 'ok' ? answer.value : undefined);
    if (answer.kind !== 'ok') return;
    const { record, recordId: named } = answer.value;
    announce(`Found: ${record ? recordState(record).word : 'only the audit trail is left'}.`);
    if (location.hash !== linkToRecord(named)) location.hash = linkToRecord(named);
  };
  const read = (named: string) => show(api.record(named));
  const findStartedBy = async (requestId: string, isAll: boolean) => {
    setFound(undefined);
    const answer = await recordsStartedBy(requestId, isAll);
    const recordIds = answer.kind === 'ok' ? answer.value : [];
    setSeveral(recordIds);
    if (recordIds.length === 1) return await read(String(recordIds[0]));
    setProblem(
      recordIds.length > 1
        ? `${recordIds.length} records were started by it.`
        : nothingStartedBy(answer, isAll),
    );
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
        <FindForm find={(request) => show(api.find(request))} />
        <RecordIdForm read={read} />
        <RequestIdForm find={findStartedBy} />
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

function wordsFor(answer: Answer<ShownRecord>): string | undefined {
  if (answer.kind !== 'refused' || answer.problem.code !== 'absent') return trouble(answer);
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

const nothingStartedBy = (answer: Answer<unknown>, isAll: boolean): string =>
  trouble(answer) ??
  (isAll
    ? 'No record was started by this request.'
    : 'No record that is not completed was started by this request. Search the completed ones too.');

/** Values by the names of the controls, or undefined if one is empty; then the first of those gets the focus. */
function filled(form: HTMLFormElement, names: readonly string[]): string[] | undefined {
  const inputs = names.map((name) => form.elements.namedItem(name) as HTMLInputElement);
  const empty = inputs.find(({ value }) => value.trim() === '');
  empty?.focus();
  return empty ? undefined : inputs.map(({ value }) => value.trim());
}

function FindForm({ find }: { find(request: FindRequest): Promise<void> }) {
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

const RECORD_ID = /^[0-9a-f]{4,64}$/;

function RecordIdForm({ read }: { read(recordId: string): Promise<void> }) {
  const [mistake, setMistake] = useState<string>();
  const submit = (event: { preventDefault(): void; currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const [recordId = ''] = filled(event.currentTarget, ['recordId']) ?? [];
    const isRecordId = RECORD_ID.test(recordId);
    setMistake(isRecordId ? undefined : 'Enter 4 to 64 hexadecimal digits in lower case.');
    if (isRecordId) void read(recordId);
  };
  return (
    <form class="panel" onSubmit={submit} noValidate aria-labelledby="by-record-id">
      <h2 id="by-record-id">By record id</h2>
      <Field
        id="find-record-id"
        label="Record id"
        hint="Its first digits are enough, as the log has them"
        mistake={mistake}
      >
        {(attributes) => (
          <input
            {...attributes}
            name="recordId"
            class="mono"
            required
            autocomplete="off"
            spellcheck={false}
          />
        )}
      </Field>
      <div class="buttons">
        <button type="submit">Look up the record id</button>
      </div>
    </form>
  );
}

function RequestIdForm({ find }: { find(requestId: string, isAll: boolean): Promise<void> }) {
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: { preventDefault(): void; currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const form = event.currentTarget;
    const [requestId] = filled(form, ['requestId']) ?? [];
    if (requestId === undefined || isBusy) return;
    setBusy(true);
    await find(requestId, (form.elements.namedItem('all') as HTMLInputElement).checked);
    setBusy(false);
  };
  return (
    <form class="panel" onSubmit={submit} noValidate aria-labelledby="by-request-id">
      <h2 id="by-request-id">By request id</h2>
      <Field id="find-request-id" label="Request id" hint="X-Request-Id of the first request with the key">
        {(attributes) => (
          <input
            {...attributes}
            name="requestId"
            class="mono"
            required
            autocomplete="off"
            spellcheck={false}
          />
        )}
      </Field>
      <label class="choice">
        <input type="checkbox" name="all" />
        <span>Completed ones too, which reads the whole store</span>
      </label>
      <div class="buttons">
        <button type="submit" aria-disabled={isBusy}>
          Look up the request
        </button>
        <span role="status">{isBusy ? 'Searching …' : ''}</span>
      </div>
    </form>
  );
}
