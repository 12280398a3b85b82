import { render } from 'preact';
import { readSession } from './api.ts';
import { App } from './app.tsx';

render(<App />, document.getElementById('console') as HTMLElement);
void readSession();
