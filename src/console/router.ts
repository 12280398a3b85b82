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
  /** What the view `doubts` shows: its filters, its order and its page. */
  query: URLSearchParams;
}

export function linkTo(view: ViewName, query?: URLSearchParams): string {
  const text = query?.toString();
  return text ? `#/${view}?${text}` : `#/${view}`;
}
export const linkToRecord = (recordId: string): string => `#/lookup/${recordId}`;

function routeOf(hash: string): Route {
  const [path = '', search] = hash.replace(/^#\/?/, '').split('?');
  const [view = '', recordId] = path.split('/');
  const query = new URLSearchParams(search);
  if (!Object.hasOwn(VIEWS, view)) return { view: 'overview', recordId: undefined, query };
  return { view: view as ViewName, recordId: view === 'lookup' && recordId ? recordId : undefined, query };
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
