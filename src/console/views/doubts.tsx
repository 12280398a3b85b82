import { useEffect, useRef, useState } from 'preact/hooks';
import type { RecordsPage, RecordView } from '../../doubts/records.ts';
import { api, sessionState } from '../api.ts';
import { overview, readOverview, usePolling } from '../live.ts';
import { Field, ScrollBox, ViewHeading } from '../parts.tsx';
import { linkToRecord } from '../router.ts';
import { announce, useShared } from '../store.ts';
import { age, doubtsInWords, inDoubtMs, moment, recordState, trouble } from '../words.ts';
import { ResolveDialog } from './resolve.tsx';

const READ_EVERY_MS = 5000;

/** Keys in doubt, a page at a time. */
export function DoubtsView() {
  const [chosen, setChosen] = useState<RecordView>();
  // Rows do not move under a dialogue.
  const { page, merchant, choose, number, problem, reread, previous, next } = useDoubtsPage(
    chosen === undefined,
  );
  const rereadAll = () => void Promise.all([reread(), readOverview()]);
  const closed = (isChanged: boolean) => {
    setChosen(undefined);
    if (isChanged) rereadAll();
  };

  return (
    <>
      <ViewHeading>In doubt</ViewHeading>
      <p>
        The backend may have executed these requests, and its answers are not known. Their merchants get 409
        outcome_unknown until somebody, a lookup or a late answer resolves them.
      </p>
      <Counted />
      <MerchantForm choose={choose} />
      {problem && (
        <p class="notice bad" role="alert">
          {problem}
        </p>
      )}
      {page ? (
        <Rows page={page} number={number} merchant={merchant} choose={setChosen} />
      ) : (
        !problem && <p>Loading …</p>
      )}
      <div class="buttons">
        <button type="button" onClick={rereadAll}>
          Read it again
        </button>
        {previous && (
          <button type="button" onClick={previous}>
            Previous page
          </button>
        )}
        {next && (
          <button type="button" onClick={next}>
            Next page
          </button>
        )}
      </div>
      {chosen && <ResolveDialog record={chosen} onClose={closed} />}
    </>
  );
}

interface ShownPage {
  /** The page, once the first one was read. */
  page: RecordsPage | undefined;
  /** Whose keys they are. Empty: those of all merchants. */
  merchant: string;
  choose(merchant: string): void;
  /** The first page has the number 1. */
  number: number;
  problem: string | undefined;
  reread(): Promise<void>;
  /** Each undefined if there is no such page. */
  previous: (() => void) | undefined;
  next: (() => void) | undefined;
}

/** One page of the keys in doubt of a merchant, or of all. With `isPolled` it is read again every few seconds. */
function useDoubtsPage(isPolled: boolean): ShownPage {
  const [merchant, setMerchant] = useState('');
  /** The cursors of this page and of those before it. The first page has none. */
  const [cursors, setCursors] = useState<(string | undefined)[]>([undefined]);
  const [page, setPage] = useState<RecordsPage>();
  const [problem, setProblem] = useState<string>();
  const cursor = cursors.at(-1);
  const wanted = `${merchant} ${cursor}`;
  const current = useRef(wanted);
  current.current = wanted;
  const reads = useRef(0);
  const isFirst = useRef(true);

  const read = async (isTimed: boolean) => {
    const query = { ...(cursor !== undefined && { cursor }), ...(merchant && { merchant }) };
    const number = ++reads.current;
    const answer = await api.doubts(query, isTimed);
    const wasInTable = document.activeElement?.closest('table');
    // The person has turned the page meanwhile, chosen another merchant, or resolved a key that this answer still has.
    if (current.current !== wanted || reads.current !== number) return;
    setProblem(trouble(answer));
    if (answer.kind === 'ok') setPage(answer.value);
    else if (answer.kind === 'refused' && answer.problem.code === 'invalid') setCursors([undefined]);
    requestAnimationFrame(() => {
      // The row that had the focus is gone.
      if (wasInTable && document.activeElement === document.body) document.querySelector('h1')?.focus();
    });
  };
  usePolling(async () => {
    if (isPolled) await read(true);
  }, READ_EVERY_MS);
  useEffect(() => {
    // Polling reads the first page.
    if (isFirst.current) isFirst.current = false;
    else void read(false);
  }, [wanted]);

  const turn = (to: (string | undefined)[]) => {
    setCursors(to);
    announce(`Page ${to.length}`);
  };
  const after = page?.cursor;
  return {
    page,
    merchant,
    choose: (chosen) => {
      setMerchant(chosen);
      setCursors([undefined]);
      announce(chosen ? `Keys of ${chosen}` : 'Keys of all merchants');
    },
    number: cursors.length,
    problem,
    reread: () => read(false),
    previous: cursors.length > 1 ? () => turn(cursors.slice(0, -1)) : undefined,
    next: after ? () => turn([...cursors, after]) : undefined,
  };
}

function MerchantForm({ choose }: { choose(merchant: string): void }) {
  const submit = (event: { preventDefault(): void; currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const { value } = event.currentTarget.elements.namedItem('merchant') as HTMLInputElement;
    choose(value.trim());
  };
  return (
    <form onSubmit={submit}>
      <Field id="doubts-merchant" label="Merchant code" hint="Empty: all merchants">
        {(attributes) => (
          // Without `value`, which each reading of the list would write over what the person types.
          <input {...attributes} name="merchant" autocomplete="off" spellcheck={false} />
        )}
      </Field>
      <div class="buttons">
        <button type="submit">Show this merchant</button>
      </div>
    </form>
  );
}

/** From this many keys on, a file of decisions is quicker than a dialogue for each. */
const MANY_KEYS = 10;

/** The list below it is newer. */
function Counted() {
  const doubts = useShared(overview)?.doubts;
  if (!doubts) return null;
  return (
    <p class="muted">
      The store’s count: {doubtsInWords(doubts)}
      {(doubts.keys ?? 0) >= MANY_KEYS &&
        ' To resolve many at once, write what the books have into a file for oncegate records resolve-many.'}
    </p>
  );
}

interface RowsProps {
  page: RecordsPage;
  number: number;
  merchant: string;
  choose(record: RecordView): void;
}

function Rows({ page, number, merchant, choose }: RowsProps) {
  const state = useShared(sessionState);
  const mayResolve = state.kind === 'open' && state.session.may.includes('resolve');
  if (page.records.length === 0 && merchant)
    return (
      <p class="notice">
        {page.cursor
          ? `None of the keys that were searched is of ${merchant}. The next page searches the others.`
          : `No ${number > 1 ? 'further ' : ''}key of ${merchant} is in doubt. Codes are compared letter by letter.`}
      </p>
    );
  if (page.records.length === 0)
    return (
      <p class={page.cursor || number > 1 ? 'notice' : 'notice good'}>
        {page.cursor || number > 1
          ? 'No key on this page is in doubt. The pages behind the last key in doubt only look for records that cannot be read.'
          : 'No key is in doubt.'}
      </p>
    );
  const oldestFirst = page.records.toSorted((a, b) => (inDoubtMs(b) ?? 0) - (inDoubtMs(a) ?? 0));
  return (
    <section class="panel" aria-label="Keys in doubt">
      {!mayResolve && <p class="muted">Your token does not permit to resolve keys.</p>}
      <ScrollBox label="Keys in doubt, scrolls sideways">
        <table>
          <caption>
            Keys in doubt{page.cursor || number > 1 ? `, page ${number}` : ''}, the oldest of the page first
          </caption>
          <thead>
            <tr>
              <th scope="col">In doubt for</th>
              <th scope="col">Merchant</th>
              <th scope="col">Operation</th>
              <th scope="col">Idempotency key</th>
              <th scope="col">Request id</th>
              <th scope="col">Started</th>
              <th scope="col">Gateway</th>
              <th scope="col">State</th>
              {mayResolve && <th scope="col">Resolve</th>}
            </tr>
          </thead>
          <tbody>
            {oldestFirst.map((record) => (
              <Row key={record.recordId} record={record} choose={mayResolve ? choose : undefined} />
            ))}
          </tbody>
        </table>
      </ScrollBox>
    </section>
  );
}

function Row({ record, choose }: { record: RecordView; choose: RowsProps['choose'] | undefined }) {
  const { recordId, merchant, operation, key, requestId, createdAt, gatewayId } = record;
  const waitedMs = inDoubtMs(record);
  return (
    <tr>
      <td>{waitedMs === undefined ? 'not known' : age(waitedMs)}</td>
      <td>{merchant ?? '–'}</td>
      <td>{operation ?? '–'}</td>
      <th scope="row" class="key">
        <a href={linkToRecord(recordId)} class="mono">
          {key ?? recordId}
        </a>
      </th>
      <td class="mono">{requestId ?? '–'}</td>
      <td>{createdAt ? moment(createdAt) : '–'}</td>
      <td class="mono">{gatewayId ?? '–'}</td>
      <td>{recordState(record).word}</td>
      {choose && (
        <td>
          {record.execution !== undefined && (
            <button type="button" onClick={() => choose(record)} aria-label={`Resolve ${key ?? recordId}`}>
              Resolve …
            </button>
          )}
        </td>
      )}
    </tr>
  );
}
