import { useEffect, useState } from 'preact/hooks';

export const VIEWS = {
  overview: 'Overview',
  doubts: 'In doubt',
  lookup: 'Look up',
} as const;
export type ViewName = keyof typeof VIEWS;

export interface Route {
  view: ViewName;
  /** The record that the view `lookup` shows. */
  recordId: string | undefined;
}

export const linkTo = (view: ViewName): string => `#/${view}`;
export const linkToRecord = (recordId: string): string => `#/lookup/${recordId}`;

function routeOf(hash: string): Route {
  const [view = '', recordId] = hash.replace(/^#\/?/, '').split('/');
  if (!Object.hasOwn(VIEWS, view)) return { view: 'overview', recordId: undefined };
  return { view: view as ViewName, recordId: view === 'lookup' && recordId ? recordId : undefined };
}

/** The route that the address names. */
export function useRoute(): Route {
  const [route, setRoute] = useState(() => routeOf(location.hash));
  useEffect(() => {
    const follow = () => setRoute(routeOf(location.hash));
    addEventListener('hashchange', follow);
    return () => removeEventListener('hashchange', follow);
  }, []);
  return route;
}
