import { render } from 'preact';
import { readSession } from './api.ts';
import { App } from './app.tsx';
import { applyTheme, currentTheme } from './theme.ts';

applyTheme(currentTheme());
render(<App />, document.getElementById('console') as HTMLElement);
void readSession();
