import { send } from './client.ts';

export type Labels = Record<string, string>;

/** The sum of a metric's series that have these labels, as the admin port shows it. */
export async function metric(
  adminUrl: string,
  name: string,
  labels: Labels = {},
  token?: string,
): Promise<number> {
  const headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
  const { body } = await send(adminUrl, { path: '/metrics', headers });
  const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
  let sum = 0;
  for (const line of body.toString().split('\n')) {
    const [, series, , has = '', value] = /^(\w+)(\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (series === name && wanted.every((label) => has.split(',').includes(label))) sum += Number(value);
  }
  return sum;
}
