import { useRef, useState } from 'preact/hooks';
import { logIn } from '../api.ts';
import { Field, ViewHeading } from '../parts.tsx';
import { trouble } from '../words.ts';

const WHY = {
  ended:
    'Your session has ended. Log in again to go on where you were. If you were resolving a key, look at it again: a resolution that had no answer may have been written.',
  logged_out: 'You are logged out.',
  used_link:
    'This link does not log in any more: it works once, and ends with its gateway. The terminal of npm start has the next one.',
};

export function LogIn({ why }: { why: keyof typeof WHY | undefined }) {
  const [mistake, setMistake] = useState<string>();
  const [isBusy, setBusy] = useState(false);
  const input = useRef<HTMLInputElement>(null);

  const submit = async (event: Event) => {
    event.preventDefault();
    const token = input.current?.value ?? '';
    if (token === '' || isBusy) return setMistake(isBusy ? mistake : 'Enter the token.');
    setBusy(true);
    const answer = await logIn(token);
    // After a success this view is gone.
    if (answer.kind === 'ok') return;
    setBusy(false);
    setMistake(trouble(answer));
    input.current?.select();
    input.current?.focus();
  };

  return (
    <form class="panel" onSubmit={submit}>
      <ViewHeading>Log in</ViewHeading>
      {why && <p class={why === 'logged_out' ? 'notice' : 'notice warn'}>{WHY[why]}</p>}
      <Field
        id="token"
        label="Admin token"
        hint="The value of admin.token in the gateway's configuration, or one of admin.tokens."
        mistake={mistake}
      >
        {(attributes) => (
          <input {...attributes} type="password" autocomplete="current-password" ref={input} />
        )}
      </Field>
      <div role="alert" class="unseen">
        {mistake}
      </div>
      <div class="buttons">
        <button type="submit" class="main" aria-disabled={isBusy}>
          Log in
        </button>
      </div>
    </form>
  );
}
