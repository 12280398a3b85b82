import { render } from 'preact';
import { logIn, readSession, sessionState } from './api.ts';
import { App } from './app.tsx';

render(<App />, document.getElementById('console') as HTMLElement);
const [, code] = /^#\/login\/([\w-]+)$/.exec(location.hash) ?? [];
if (code) void openByLink(code);
else void readSession();

/** `oncegate start` prints a link whose fragment has a code that logs in once. A fragment is never sent, nor logged. */
async function openByLink(token: string): Promise<void> {
  history.replaceState(null, '', '#/overview');
  const answer = await logIn(token);
  if (answer.kind !== 'ok') sessionState.set({ kind: 'none', why: 'used_link' });
}
