import { useEffect, useRef, useState } from 'preact/hooks';
import type { RecordView } from '../../doubts/record-view.ts';
import { type Answer, api } from '../api.ts';
import { Dialog } from '../dialog.tsx';
import { Facts } from '../parts.tsx';
import { linkToRecord } from '../router.ts';
import { announce } from '../store.ts';
import { moment, recordState, trouble } from '../words.ts';
import { type FilledForm, ResolveForm } from './resolve-form.tsx';

export interface ResolveProps {
  record: RecordView;
  /** Called when the dialogue is closed. With `true` if the record is another than the one that was shown. */
  onClose(isChanged: boolean): void;
}

/** The dialogue in which a person says what the backend did with the request of a key in doubt. */
export function ResolveDialog({ record, onClose }: ResolveProps) {
  const [resolved, setResolved] = useState<ResultProps>();
  const [refused, setRefused] = useState<Answer<unknown>>();
  /** Whether a try had no answer, and may have been written. */
  const [mayBeWritten, setMayBeWritten] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const close = () => {
    // Does not close while the request runs: its answer would be lost.
    if (!isBusy) onClose(resolved !== undefined || refused !== undefined);
  };
  const send = async (filled: FilledForm) => {
    setBusy(true);
    const { recordId, execution = '' } = record;
    const answer = await api.resolve(recordId, { ...filled, execution });
    if (answer.kind === 'ok') {
      const now = await api.record(recordId);
      announce('The key is resolved.');
      setResolved({ form: filled, record: now.kind === 'ok' ? now.value.record : null });
    } else {
      setRefused(answer);
      if (isUnanswered(answer)) setMayBeWritten(true);
    }
    setBusy(false);
  };
  if (resolved)
    return (
      <Dialog title="The key is resolved" onClose={close}>
        <Result {...resolved} />
        <div class="buttons">
          <button type="button" class="main" onClick={close}>
            Close
          </button>
          <a href={linkToRecord(record.recordId)} onClick={close}>
            Show the record
          </a>
        </div>
      </Dialog>
    );
  return (
    <Dialog title="Resolve a key in doubt" onClose={close}>
      <Facts
        rows={[
          ['Merchant', record.merchant],
          ['Operation', record.operation],
          ['Idempotency key', <code>{record.key}</code>],
          ['Request id', <code>{record.requestId}</code>],
          ['Started', record.createdAt && moment(record.createdAt)],
          ['Gateway', record.gatewayId],
          ['State', recordState(record).word],
          ['Cause', record.cause],
        ]}
      />
      <p>
        Look the request up in the backend’s own books first, by its request id, merchant and time. The
        gateway cannot check what you say here.
      </p>
      <p>
        Before you say that it was not executed, make sure that the gateway above is dead, or has left the key
        in doubt itself, as the cause says. A gateway that is only paused may still send the request.
      </p>
      <ResolveForm isBusy={isBusy} send={send} cancel={close}>
        {refused && <Refusal answer={refused} mayBeWritten={mayBeWritten} />}
      </ResolveForm>
    </Dialog>
  );
}

const isUnanswered = (answer: Answer<unknown>): boolean =>
  answer.kind === 'unreachable' || (answer.kind === 'refused' && answer.problem.code === 'unavailable');

interface ResultProps {
  form: FilledForm;
  /** The record as it is after the resolution. */
  record: RecordView | null;
}

/**
 * Says what the resolution did. The record does not tell: it can be gone or that of the merchant's next request already, and
 * is not known if the store did not answer any more.
 */
function Result({ record, form: { as, status } }: ResultProps) {
  if (as === 'released')
    return (
      <p class="notice good">
        The key was released.{' '}
        {record
          ? `The merchant has sent a request with it since, which is now: ${recordState(record).word}.`
          : 'The merchant’s next request with it is sent to the backend as a new request.'}
      </p>
    );
  const what =
    status === undefined
      ? 'Retries with this key get 409 response_not_stored: they learn that it was executed, and not the response.'
      : `Retries with this key get the response that you gave, with status ${status}.`;
  return <p class="notice good">The key is completed. {what} Nothing is sent to the backend.</p>;
}

interface RefusalProps {
  answer: Answer<unknown>;
  /** An earlier try may have been written. */
  mayBeWritten: boolean;
}

/** Why nothing was written, or that this is not known. */
function Refusal({ answer, mayBeWritten }: RefusalProps) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => box.current?.scrollIntoView({ block: 'nearest' }), [answer]);
  return (
    <div class="notice bad" role="alert" ref={box}>
      <RefusalWords answer={answer} mayBeWritten={mayBeWritten} />
    </div>
  );
}

function RefusalWords({ answer, mayBeWritten }: RefusalProps) {
  if (answer.kind === 'unreachable')
    return (
      <p>
        The gateway did not answer. Your resolution may have been written: close this dialogue and look at the
        record before you try again.
      </p>
    );
  if (answer.kind !== 'refused') return null;
  const { code, record } = answer.problem;
  const state = record && recordState(record);
  return (
    <>
      <p>{trouble(answer)}</p>
      {code === 'changed' && (
        <p>
          {mayBeWritten ? 'This try' : 'Your resolution'} was not written, because the record is another than
          the one you saw.
          {state ? ` It is now: ${state.word}. ${state.meaning}` : ''}
        </p>
      )}
      {code === 'alive' && (
        <p>
          Nothing was written. The gateway that sent this request may still get the backend’s answer. If it
          does, the key completes by itself.
        </p>
      )}
      {code === 'absent' && <p>The record is gone: it was released, or it has expired.</p>}
      {code === 'unavailable' && (
        <p>Your resolution may have been written. Look at the record before you try again.</p>
      )}
      {mayBeWritten && (code === 'changed' || code === 'absent') && (
        <p>
          Your earlier try, which had no answer, may have been written. The record says what happened, and who
          did it.
        </p>
      )}
      {record && <a href={linkToRecord(record.recordId)}>Show the record as it is now</a>}
    </>
  );
}
