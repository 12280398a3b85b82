import { parts } from './parts.ts';
import { traffic } from './traffic.ts';
import { wellBeing } from './well-being.ts';

export const overview = {
  page: 'overview' as const,
  title: 'Overview',
  description: 'Are merchants well, and if not, which part is not? The details are one click away.',
  rows: [wellBeing, parts, traffic],
};
