import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { RecordView, SortedPage } from '../../doubts/record-view.ts';
import { api, gatewayNowMs, sessionState } from '../api.ts';
import { overview, readOverview, usePolling } from '../live.ts';
import { Field, ViewHeading } from '../parts.tsx';
import { linkTo, linkToRecord } from '../router.ts';
import { announce, useShared } from '../store.ts';
import { age, count, doubtsInWords, inDoubtMs, moment, number, trouble } from '../words.ts';
import { ResolveDialog } from './resolve.tsx';

const READ_EVERY_MS = 5000;
const ROWS = 25;

const AGES = ['60000', '600000', '3600000', '86400000'];
const ORDERS = {
  oldest: 'Oldest first',
  newest: 'Newest first',
  merchant: 'By merchant',
  operation: 'By operation',
  cause: 'By cause',
};

/** Keys in doubt. @param query the filters, the order and the page, which the address has */
export function DoubtsView({ query }: { query: URLSearchParams }) {
  const [chosen, setChosen] = useState<RecordView>();
  // Rows do not move under a dialogue.
  const { page, problem, reread } = useDoubtsPage(query, chosen === undefined);
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
      <Filters query={query} page={page} />
      {problem && (
        <p class="notice bad" role="alert">
          {problem}
        </p>
      )}
      {page ? <Rows page={page} query={query} choose={setChosen} /> : !problem && <p>Loading …</p>}
      <div class="buttons">
        <button type="button" onClick={rereadAll}>
          Read it again
        </button>
        {page && <Pager page={page} query={query} />}
        {page && page.matching > 0 && <Export query={query} />}
      </div>
      {chosen && <ResolveDialog record={chosen} onClose={closed} />}
    </>
  );
}

/** Reads the page again whenever the query changes, and with `isPolled` every few seconds. */
function useDoubtsPage(query: URLSearchParams, isPolled: boolean) {
  const [page, setPage] = useState<SortedPage>();
  const [problem, setProblem] = useState<string>();
  const wanted = query.toString();
  const current = useRef(wanted);
  current.current = wanted;
  const reads = useRef(0);
  const isFirst = useRef(true);

  const read = async (isTimed: boolean) => {
    const read = ++reads.current;
    const answer = await api.doubts({ limit: String(ROWS), ...Object.fromEntries(query) }, isTimed);
    const wasInTable = document.activeElement?.closest('table');
    // The person has turned the page meanwhile, chosen others, or resolved a key that this answer still has.
    if (current.current !== wanted || reads.current !== read) return;
    setProblem(trouble(answer));
    if (answer.kind === 'ok') setPage(answer.value);
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
  return { page, problem, reread: () => read(false) };
}

/** The same query with another value; without a value it has the default. */
function changed(query: URLSearchParams, name: string, value: string): URLSearchParams {
  const other = new URLSearchParams(query);
  // What is chosen differently begins with its first page.
  other.delete('page');
  other.delete(name);
  if (value) other.set(name, value);
  return other;
}

function Filters({ query, page }: { query: URLSearchParams; page: SortedPage | undefined }) {
  const choose = (name: string, value: string) => {
    location.hash = linkTo('doubts', changed(query, name, value));
  };
  const select = (name: string, label: string, options: [value: string, text: string][]) => {
    const value = query.get(name) ?? '';
    const known = options.some(([option]) => option === value)
      ? options
      : [...options, [value, value] as const];
    return (
      <Field id={`doubts-${name}`} label={label}>
        {(attributes) => (
          <select {...attributes} value={value} onChange={(event) => choose(name, event.currentTarget.value)}>
            {known.map(([option, text]) => (
              <option key={option} value={option}>
                {text}
              </option>
            ))}
          </select>
        )}
      </Field>
    );
  };
  const counted = (names: SortedPage['causes'] = []) =>
    names.map(({ name, keys }): [string, string] => [name, `${name} (${number(keys)})`]);
  const submit = (event: { preventDefault(): void; currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const { value } = event.currentTarget.elements.namedItem('merchant') as HTMLInputElement;
    choose('merchant', value.trim());
    announce(value ? `Keys of ${value.trim()}` : 'Keys of all merchants');
  };
  return (
    <form class="panel filters" onSubmit={submit} aria-label="Which keys">
      <Field id="doubts-merchant" label="Merchant code" hint="Empty: all. Enter shows them.">
        {(attributes) => (
          // Without `value`, which each reading of the list would write over what the person types.
          <input
            {...attributes}
            name="merchant"
            defaultValue={query.get('merchant') ?? ''}
            autocomplete="off"
            spellcheck={false}
          />
        )}
      </Field>
      {select('operation', 'Operation', [['', 'All'], ...counted(page?.operations)])}
      {select('cause', 'Cause', [['', 'All'], ...counted(page?.causes)])}
      {select('older_than_ms', 'In doubt for', [
        ['', 'Any time'],
        ...AGES.map((ms): [string, string] => [ms, `${age(Number(ms))} or more`]),
      ])}
      {select(
        'sort',
        'Order',
        Object.entries(ORDERS).map(([sort, text]) => [sort === 'oldest' ? '' : sort, text]),
      )}
    </form>
  );
}

function Pager({ page: { page, pages }, query }: { page: SortedPage; query: URLSearchParams }) {
  if (pages === 1) return null;
  const link = (to: number, text: string) =>
    to >= 1 &&
    to <= pages && (
      <a
        class="button"
        href={linkTo('doubts', changed(query, 'page', to === 1 ? '' : String(to)))}
        // The links are below the rows, and the next page begins above them.
        onClick={() => document.querySelector('h1')?.focus()}
      >
        {text}
      </a>
    );
  return (
    <nav class="buttons" aria-label="Pages">
      {link(page - 1, 'Previous page')}
      <span role="status">
        Page {number(page)} of {number(pages)}
      </span>
      {link(page + 1, 'Next page')}
    </nav>
  );
}

/** Saves all keys that match, in the form that `oncegate records resolve-many` reads. */
function Export({ query }: { query: URLSearchParams }) {
  const [problem, setProblem] = useState<string>();
  const save = async () => {
    const lines = new Map<string, string>();
    for (let [at, pages] = [1, 1]; at <= pages; at++) {
      const wanted = { ...Object.fromEntries(query), limit: '1000', page: String(at) };
      const answer = await api.doubts(wanted, false);
      setProblem(trouble(answer));
      if (answer.kind !== 'ok') return;
      pages = answer.value.pages;
      for (const record of answer.value.records) lines.set(record.recordId, `${JSON.stringify(record)}\n`);
    }
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([...lines.values()], { type: 'application/jsonl' }));
    link.download = `in-doubt-${new Date(gatewayNowMs()).toISOString().slice(0, 19).replaceAll(':', '')}.jsonl`;
    link.click();
    URL.revokeObjectURL(link.href);
    announce(`${count(lines.size, 'key')} saved as ${link.download}`);
  };
  return (
    <>
      <button type="button" onClick={save}>
        Save all that match as JSON lines
      </button>
      {problem && <span role="alert">{problem}</span>}
    </>
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
        ' To resolve many at once, save them, write what the books have into a file, and give it to oncegate records resolve-many.'}
    </p>
  );
}

interface RowsProps {
  page: SortedPage;
  query: URLSearchParams;
  choose(record: RecordView): void;
}

function Rows({ page, query, choose }: RowsProps) {
  const state = useShared(sessionState);
  const mayResolve = state.kind === 'open' && state.session.may.includes('resolve');
  const { records, matching, inAll, isCut } = page;
  const merchant = query.get('merchant');
  if (matching === 0)
    return (
      <p class={inAll > 0 || isCut ? 'notice' : 'notice good'}>
        {inAll === 0
          ? `No key is in doubt${isCut ? ' among those that were read' : ''}.`
          : merchant
            ? `No key of ${merchant} is in doubt that matches. Codes are compared letter by letter.`
            : 'No key in doubt matches.'}
      </p>
    );
  const first = (page.page - 1) * ROWS + 1;
  const order = ORDERS[(query.get('sort') ?? 'oldest') as keyof typeof ORDERS] ?? '';
  return (
    <section class="panel" aria-label="Keys in doubt">
      {!mayResolve && <p class="muted">Your token does not permit to resolve keys.</p>}
      {isCut && (
        <p class="notice warn">
          The store has more than {number(inAll)} keys in doubt. Only these were read: sort and filter mean
          these.
        </p>
      )}
      <table class="cards">
        <caption>
          Keys in doubt, {number(first)} to {number(first + records.length - 1)} of {number(matching)}
          {matching < inAll && ` that match, of ${number(inAll)} in all`}. {order}.
        </caption>
        <thead>
          <tr>
            {['Idempotency key', 'In doubt for', 'Merchant', 'Operation', 'Cause', 'Request id'].map(
              (name) => (
                <th scope="col" key={name}>
                  {name}
                </th>
              ),
            )}
            {mayResolve && <th scope="col">Resolve</th>}
          </tr>
        </thead>
        <tbody>
          {records.map((record) => (
            <Row key={record.recordId} record={record} choose={mayResolve ? choose : undefined} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Row({ record, choose }: { record: RecordView; choose: RowsProps['choose'] | undefined }) {
  const { recordId, merchant, operation, key, requestId, createdAt, gatewayId, cause, reason } = record;
  const waitedMs = inDoubtMs(record);
  const cell = (label: string, value: ComponentChildren, more?: ComponentChildren) => (
    <td data-label={label} class={label === 'In doubt for' ? 'unbroken' : undefined}>
      {value ?? '–'}
      {more && <div class="muted">{more}</div>}
    </td>
  );
  return (
    <tr>
      <th scope="row">
        <a href={linkToRecord(recordId)} class="mono">
          {key ?? recordId}
        </a>
      </th>
      {cell(
        'In doubt for',
        waitedMs === undefined ? 'not known' : age(waitedMs),
        createdAt && `since ${moment(createdAt)}`,
      )}
      {cell('Merchant', merchant)}
      {cell('Operation', operation)}
      {cell('Cause', reason ? `cannot be read: ${reason}` : (cause ?? 'not known'))}
      {cell('Request id', requestId && <span class="mono">{requestId}</span>, gatewayId && `on ${gatewayId}`)}
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
