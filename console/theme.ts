import { useEffect, useState } from 'preact/hooks';

export type Theme = 'system' | 'light' | 'dark';

const NAME = 'oncegate-theme';
const darkSystem = matchMedia('(prefers-color-scheme: dark)');
const changed = new EventTarget();

const isTheme = (text: string | null): text is Theme =>
  text === 'system' || text === 'light' || text === 'dark';

/** Browsers refuse the storage in some private windows. */
function stored(): string | null {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}

export function currentTheme(): Theme {
  const theme = stored();
  return isTheme(theme) ? theme : 'system';
}

export function applyTheme(theme: Theme): void {
  if (theme === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(NAME, theme);
  } catch {
    // It then holds until the page is left.
  }
  changed.dispatchEvent(new Event('change'));
}

/** A number that changes with the colours, for what is drawn on a canvas. */
export function useColours(): number {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const redraw = () => setVersion((before) => before + 1);
    changed.addEventListener('change', redraw);
    darkSystem.addEventListener('change', redraw);
    return () => {
      changed.removeEventListener('change', redraw);
      darkSystem.removeEventListener('change', redraw);
    };
  }, []);
  return version;
}
