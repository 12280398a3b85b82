import { useEffect, useState } from 'preact/hooks';
import type { RecordView, ShownRecord, StoredResponse } from '../../doubts/record-view.ts';
import { api, sessionState } from '../api.ts';
import { Facts } from '../parts.tsx';
import { useShared } from '../store.ts';
import { age, count, inDoubtMs, isInDoubt, moment, recordState, trouble } from '../words.ts';
import { ResolveDialog } from './resolve.tsx';
import { entriesOf } from './timeline.ts';

/** Everything that is known of one record. */
export function RecordPanel({ found, reread }: { found: ShownRecord; reread(): void }) {
  const { recordId, record } = found;
  const waitedMs = record ? inDoubtMs(record) : undefined;
  const [isResolving, setResolving] = useState(false);
  const state = useShared(sessionState);
  const may = state.kind === 'open' ? state.session.may : [];
  const words = record && recordState(record);
  const closed = (isChanged: boolean) => {
    setResolving(false);
    if (isChanged) reread();
  };
  return (
    <section class="panel" aria-labelledby="record">
      <h2 id="record" tabIndex={-1}>
        {record?.key === undefined ? 'Record' : `Key ${record.key}`}
      </h2>
      <p>
        <span class={`word ${words?.tone ?? ''}`}>{words?.word ?? 'No record'}</span>.{' '}
        {words?.meaning ??
          'The record is gone. Only the audit trail is left: a request with this key is sent as a new one.'}
      </p>
      {record && (
        <Facts
          rows={[
            ['Merchant', record.merchant],
            ['Operation', record.operation],
            ['Idempotency key', record.key && <code>{record.key}</code>],
            ['In doubt for', waitedMs === undefined ? undefined : age(waitedMs)],
            ['Started', record.createdAt && moment(record.createdAt)],
            ['Last change', record.changedAt && moment(record.changedAt)],
            ['Kept until', record.expiresAt && moment(record.expiresAt)],
            ['Request id', record.requestId && <code>{record.requestId}</code>],
            ['Gateway', record.gatewayId && <code>{record.gatewayId}</code>],
            ['Cause', record.cause],
            [
              'Sent again',
              record.sentAgain ? 'yes: the first request may have been executed too' : undefined,
            ],
            ['Was in doubt', record.wasInDoubt && !isInDoubt(record) ? 'yes' : undefined],
            ['Encrypted with', record.encryptionKeyId],
            ['Fingerprint', record.fingerprint && <code>{record.fingerprint}</code>],
            ['Record id', <code>{recordId}</code>],
          ]}
        />
      )}
      <div class="buttons">
        {record && isInDoubt(record) && record.execution !== undefined && may.includes('resolve') && (
          <button type="button" class="main" onClick={() => setResolving(true)}>
            Resolve …
          </button>
        )}
        <button type="button" onClick={reread}>
          Read it again
        </button>
      </div>
      <Timeline found={found} />
      {record?.completion && (
        <Response recordId={recordId} completion={record.completion} mayRead={may.includes('bodies')} />
      )}
      {isResolving && record && <ResolveDialog record={record} onClose={closed} />}
    </section>
  );
}

function Timeline({ found }: { found: ShownRecord }) {
  const entries = entriesOf(found);
  if (entries.length === 0) return null;
  return (
    <>
      <h3>What happened</h3>
      <ol class="timeline">
        {entries.map(({ at, text }, i) => (
          <li key={`${i} ${at}`}>
            <time dateTime={at}>{moment(at)}</time>: {text}
          </li>
        ))}
      </ol>
    </>
  );
}

interface ResponseProps {
  recordId: string;
  completion: NonNullable<RecordView['completion']>;
  mayRead: boolean;
}

function Response({ recordId, completion, mayRead }: ResponseProps) {
  const [stored, setStored] = useState<StoredResponse>();
  const [problem, setProblem] = useState<string>();
  useEffect(() => {
    setStored(undefined);
    setProblem(undefined);
  }, [completion]);
  if (completion.kind === 'tombstone')
    return (
      <>
        <h3>Response</h3>
        <p>It was executed, and its response is not stored. Retries get 409 response_not_stored.</p>
      </>
    );
  const read = async () => {
    const answer = await api.body(recordId);
    setProblem(trouble(answer));
    if (answer.kind === 'ok') setStored(answer.value);
  };
  return (
    <>
      <h3>Response that retries get</h3>
      <Facts
        rows={[
          ['Status', String(completion.status)],
          ['Body', count(completion.bodyBytes, 'byte')],
        ]}
      />
      <Headers headers={stored?.headers ?? completion.headers} />
      {mayRead && !stored && completion.bodyBytes > 0 && (
        <div class="buttons">
          <button type="button" onClick={read}>
            Show the stored body
          </button>
          <span class="muted">The gateway logs who looked at it.</span>
        </div>
      )}
      {!mayRead && <p class="muted">Your token does not permit to see the body.</p>}
      <div role="status">{stored && <Body stored={stored} />}</div>
      {problem && (
        <p class="notice bad" role="alert">
          {problem}
        </p>
      )}
    </>
  );
}

/** @param headers names and values in turn */
function pairsOf<Value extends string | null>(headers: readonly Value[]): [string, Value | undefined][] {
  return headers.flatMap((name, i): [string, Value | undefined][] =>
    i % 2 === 0 ? [[String(name), headers[i + 1]]] : [],
  );
}

function Headers({ headers }: { headers: readonly (string | null)[] }) {
  if (headers.length === 0) return null;
  return (
    <table class="cards">
      <caption>Header fields of the response</caption>
      <thead>
        <tr>
          <th scope="col">Name</th>
          <th scope="col">Value</th>
        </tr>
      </thead>
      <tbody>
        {pairsOf(headers).map(([name, value], at) => (
          <tr key={`${at} ${name}`}>
            <th scope="row" class="mono">
              {name}
            </th>
            <td class="mono">{value ?? <span class="muted">hidden</span>}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Body({ stored }: { stored: StoredResponse }) {
  const header = (wanted: string) =>
    pairsOf(stored.headers).find(([name]) => name.toLowerCase() === wanted)?.[1];
  const encoding = header('content-encoding');
  const text = encoding ? undefined : textOf(stored.body);
  return (
    <>
      <p class="unseen">The stored body is shown.</p>
      {atob(stored.body).length < stored.bodyBytes && (
        <p class="muted">These are the first bytes of {count(stored.bodyBytes, 'byte')}.</p>
      )}
      {text === undefined ? (
        <>
          <p class="muted">
            {encoding ? `The body is compressed (${encoding}).` : 'The body is not text.'} This is it in
            base64.
          </p>
          <pre>{stored.body}</pre>
        </>
      ) : (
        <pre>{text}</pre>
      )}
    </>
  );
}

/** The text of a body, unless it is not UTF-8 or has control characters that text does not have. */
function textOf(base64: string): string | undefined {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    // In UTF-8, bytes below 0x20 are always control characters. From tab to carriage return, text has them.
    return bytes.some((byte) => byte < 0x20 && (byte < 0x09 || byte > 0x0d)) ? undefined : text;
  } catch {
    return undefined;
  }
}
