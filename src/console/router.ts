import { useEffect, useState } from 'preact/hooks';

export const VIEWS = {
  overview: 'Overview',
  doubts: 'In doubt',
  lookup: 'Look up',
} as const;
export type ViewName = keyof typeof VIEWS;

export interface Place {
  view: ViewName;
  /** The record that the view `lookup` shows. */
  recordId: string | undefined;
}

export const linkTo = (view: ViewName): string => `#/${view}`;
export const linkToRecord = (recordId: string): string => `#/lookup/${recordId}`;

function placeOf(hash: string): Place {
  const [view = '', recordId] = hash.replace(/^#\/?/, '').split('/');
  if (!Object.hasOwn(VIEWS, view)) return { view: 'overview', recordId: undefined };
  return { view: view as ViewName, recordId: view === 'lookup' && recordId ? recordId : undefined };
}

/** The place that the address names. */
export function usePlace(): Place {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useEffect(() => {
    const follow = () => setPlace(placeOf(location.hash));
    addEventListener('hashchange', follow);
    return () => removeEventListener('hashchange', follow);
  }, []);
  return place;
}
