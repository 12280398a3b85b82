import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { ResolveForm as Form } from '../contract.ts';
import { Field } from '../parts.tsx';

/** What a person types before a release. */
const CONFIRMATION = 'not executed';
const MAX_REASON = 500;
const MAX_PERSON = 60;

/** Kept from one resolution to the next, because one person often makes several. */
let lastPerson = '';

/** What the form asks for. The dialogue adds which execution is resolved. */
export type FilledForm = Omit<Form, 'execution'>;

type As = FilledForm['as'];
type FieldName = 'status' | 'type' | 'body' | 'confirmation' | 'reason' | 'person';
/** A field that is not shown is empty. All but the body are trimmed. */
type Values = Record<FieldName, string>;
type Mistakes = Partial<Record<'as' | FieldName, string>>;

export interface ResolveFormProps {
  /** The gateway has not answered yet. Meanwhile the form can neither be sent nor be cancelled. */
  isBusy: boolean;
  /** Shown above the buttons: why the last try was refused. */
  children: ComponentChildren;
  /** Called when the form has no mistake. */
  send(filled: FilledForm): void;
  cancel(): void;
}

/** Asks what the backend did with the request, and checks what was typed. The gateway checks it again. */
export function ResolveForm({ isBusy, children, send, cancel }: ResolveFormProps) {
  const [as, setAs] = useState<As>();
  const [mistakes, setMistakes] = useState<Mistakes>({});
  const form = useRef<HTMLFormElement>(null);
  useLayoutEffect(() => {
    const [first] = Object.keys(mistakes);
    if (first) form.current?.querySelector<HTMLElement>(`[name=${first}]`)?.focus();
  }, [mistakes]);

  const submit = (event: Event) => {
    event.preventDefault();
    if (isBusy) return;
    const values = valuesIn(form.current as HTMLFormElement);
    const found = mistakesIn(as, values);
    setMistakes(found);
    if (as === undefined || Object.keys(found).length > 0) return;
    lastPerson = values.person;
    send(filledForm(as, values));
  };

  return (
    <form onSubmit={submit} ref={form} noValidate>
      <Choices as={as} choose={setAs} mistake={mistakes.as} />
      {as === 'completed' && <ResponseFields mistakes={mistakes} />}
      {as === 'released' && <ReleaseFields mistakes={mistakes} />}
      <Field
        id="resolve-reason"
        label="Reason (required)"
        hint="What you found, and where. One line; kept in the audit trail."
        mistake={mistakes.reason}
      >
        {(attributes) => (
          <input {...attributes} name="reason" maxLength={MAX_REASON} required autocomplete="off" />
        )}
      </Field>
      <Field
        id="resolve-person"
        label="Your name (optional)"
        hint="Beside the name of the token, for the audit trail."
        mistake={mistakes.person}
      >
        {(attributes) => (
          <input {...attributes} name="person" maxLength={MAX_PERSON} defaultValue={lastPerson} />
        )}
      </Field>
      {children}
      <div class="buttons">
        <button type="submit" class={as === 'released' ? 'danger' : 'main'} aria-disabled={isBusy}>
          {as === 'released' ? 'Release the key' : 'Complete the key'}
        </button>
        <button type="button" onClick={cancel} aria-disabled={isBusy}>
          Cancel
        </button>
        <span role="status">{isBusy ? 'The gateway is asked …' : ''}</span>
      </div>
    </form>
  );
}

interface ChoicesProps {
  as: As | undefined;
  choose(as: As): void;
  mistake: string | undefined;
}

function Choices({ as, choose, mistake }: ChoicesProps) {
  const choice = (value: As, label: string) => (
    <label class="choice">
      <input
        type="radio"
        name="as"
        value={value}
        checked={as === value}
        aria-describedby={mistake ? 'as-mistake' : undefined}
        onChange={() => choose(value)}
      />
      <span>{label}</span>
    </label>
  );
  return (
    <fieldset>
      <legend>What did the backend do?</legend>
      {choice('completed', 'It executed the request: complete the key')}
      {choice('released', 'It did not execute the request: release the key')}
      {mistake && (
        <span class="bad word" id="as-mistake">
          {mistake}
        </span>
      )}
    </fieldset>
  );
}

function ResponseFields({ mistakes }: { mistakes: Mistakes }) {
  return (
    <fieldset>
      <legend>The response that retries get (optional)</legend>
      <p class="muted">
        Copy it from the backend’s books if you can. Without a status, retries get 409 response_not_stored.
      </p>
      <div class="columns">
        <Field id="resolve-status" label="Status" hint="200 to 599" mistake={mistakes.status}>
          {(attributes) => <input {...attributes} name="status" inputMode="numeric" autocomplete="off" />}
        </Field>
        <Field id="resolve-type" label="Content type">
          {(attributes) => (
            <input {...attributes} name="type" defaultValue="application/json" autocomplete="off" />
          )}
        </Field>
      </div>
      <Field id="resolve-body" label="Body">
        {(attributes) => <textarea {...attributes} name="body" rows={4} class="mono" spellcheck={false} />}
      </Field>
    </fieldset>
  );
}

function ReleaseFields({ mistakes }: { mistakes: Mistakes }) {
  return (
    <fieldset>
      <legend>A release can pay twice</legend>
      <p class="notice bad">
        The merchant’s next request with this key is sent to the backend. If the backend executed the first
        request after all, it pays a second time, and the gateway cannot prevent it. Release only if the
        backend’s books show that it did not execute the request and never will.
      </p>
      <Field
        id="resolve-confirmation"
        label={`Type “${CONFIRMATION}” to confirm`}
        mistake={mistakes.confirmation}
      >
        {(attributes) => <input {...attributes} name="confirmation" autocomplete="off" spellcheck={false} />}
      </Field>
    </fieldset>
  );
}

function valuesIn(form: HTMLFormElement): Values {
  const values = new FormData(form);
  const text = (name: FieldName) => String(values.get(name) ?? '');
  return {
    status: text('status').trim(),
    type: text('type').trim(),
    body: text('body'),
    confirmation: text('confirmation').trim(),
    reason: text('reason').trim(),
    person: text('person').trim(),
  };
}

/** The mistakes in the order of the fields, of which the first gets the focus. */
function mistakesIn(as: As | undefined, { status, body, confirmation, reason }: Values): Mistakes {
  const mistakes: Mistakes = {};
  if (as === undefined) mistakes.as = 'Choose what the backend did.';
  if (as === 'completed') {
    const number = Number(status || 200);
    if (!Number.isInteger(number) || number < 200 || number > 599)
      mistakes.status = 'A status is a whole number from 200 to 599.';
    else if (body.trim() && !status) mistakes.status = 'A body needs a status.';
  }
  if (as === 'released' && confirmation.toLowerCase() !== CONFIRMATION)
    mistakes.confirmation = `Type the words “${CONFIRMATION}”.`;
  if (reason === '') mistakes.reason = 'Say why: the reason is kept in the audit trail.';
  return mistakes;
}

function filledForm(as: As, { status, type, body, reason, person }: Values): FilledForm {
  const hasResponse = as === 'completed' && status !== '';
  return {
    as,
    reason,
    ...(person && { person }),
    ...(hasResponse && { status: Number(status) }),
    ...(hasResponse && body && type && { headers: { 'Content-Type': type } }),
    ...(hasResponse && body && { body: base64(body) }),
  };
}

function base64(text: string): string {
  let bytes = '';
  for (const byte of new TextEncoder().encode(text)) bytes += String.fromCharCode(byte);
  return btoa(bytes);
}
