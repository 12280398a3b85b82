import { useEffect, useState } from 'preact/hooks';
import { api, sessionState } from './api.ts';
import type { FoundRecord, HeaderView, ResponseView, StoredBody, TimelineEntry } from './contract.ts';
import { Facts, ScrollBox } from './parts.tsx';
import { ResolveDialog } from './resolve.tsx';
import { useShared } from './store.ts';
import { age, count, moment, recordState, trouble } from './words.ts';

/** Everything that is known of one record. */
export function RecordPanel({ found, reread }: { found: FoundRecord; reread(): void }) {
  const { recordId, record, response, timeline } = found;
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
            ['In doubt for', record.inDoubtMs === undefined ? undefined : age(record.inDoubtMs)],
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
            ['Was in doubt', record.wasInDoubt && !record.inDoubt ? 'yes' : undefined],
            ['Encrypted with', record.encryptionKeyId],
            ['Fingerprint', record.fingerprint && <code>{record.fingerprint}</code>],
            ['Record id', <code>{recordId}</code>],
          ]}
        />
      )}
      <div class="buttons">
        {record?.inDoubt && record.execution !== undefined && may.includes('resolve') && (
          <button type="button" class="main" onClick={() => setResolving(true)}>
            Resolve …
          </button>
        )}
        <button type="button" onClick={reread}>
          Read it again
        </button>
      </div>
      <Timeline entries={timeline} />
      {response && <Response recordId={recordId} response={response} mayRead={may.includes('bodies')} />}
      {isResolving && record && <ResolveDialog record={record} onClose={closed} />}
    </section>
  );
}

function Timeline({ entries }: { entries: readonly TimelineEntry[] }) {
  if (entries.length === 0) return null;
  return (
    <>
      <h3>What happened</h3>
      <ol class="timeline">
        {entries.map((entry, at) => (
          <li key={`${at} ${entry.at}`}>
            <time dateTime={entry.at}>{moment(entry.at)}</time>: {sentence(entry)}
          </li>
        ))}
      </ol>
    </>
  );
}

function sentence(entry: TimelineEntry): string {
  switch (entry.what) {
    case 'started': {
      const request = entry.requestId ? ` by request ${entry.requestId}` : '';
      return `started${request}${entry.gatewayId ? ` on gateway ${entry.gatewayId}` : ''}.`;
    }
    case 'completed':
      return 'completed with the backend’s response.';
    case 'in_doubt':
      return 'in doubt: the backend’s answer did not arrive.';
    case 'resolved': {
      const status = entry.status ? ` with status ${entry.status}` : '';
      return `resolved as ${entry.as}${status}, by ${entry.by}. Reason: ${entry.reason}`;
    }
  }
}

interface ResponseProps {
  recordId: string;
  response: ResponseView;
  mayRead: boolean;
}

function Response({ recordId, response, mayRead }: ResponseProps) {
  const [stored, setStored] = useState<StoredBody>();
  const [problem, setProblem] = useState<string>();
  useEffect(() => {
    setStored(undefined);
    setProblem(undefined);
  }, [response]);
  if (response.kind === 'tombstone')
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
          ['Status', String(response.status)],
          ['Body', count(response.bodyBytes, 'byte')],
        ]}
      />
      <Headers headers={stored?.headers ?? response.headers} />
      {mayRead && !stored && response.bodyBytes > 0 && (
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

function Headers({ headers }: { headers: readonly HeaderView[] }) {
  if (headers.length === 0) return null;
  return (
    <ScrollBox label="Header fields">
      <table>
        <caption>Header fields of the response</caption>
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col">Value</th>
          </tr>
        </thead>
        <tbody>
          {headers.map(({ name, value }, at) => (
            <tr key={`${at} ${name}`}>
              <th scope="row" class="mono">
                {name}
              </th>
              <td class="mono">{value ?? <span class="muted">hidden</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </ScrollBox>
  );
}

function Body({ stored }: { stored: StoredBody }) {
  const header = (wanted: string) =>
    stored.headers.find(({ name }) => name.toLowerCase() === wanted)?.value ?? undefined;
  const encoding = header('content-encoding');
  const text = encoding ? undefined : textOf(stored.body);
  return (
    <>
      <p class="unseen">The stored body is shown.</p>
      {stored.truncated && (
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

/** Undefined if it is not UTF-8, or has control characters that text does not have. */
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
