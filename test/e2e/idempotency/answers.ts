import type { TestAnswer } from '../../support/client.ts';

/** Fields of the connection between the merchant and the gateway, and fields that name requests. */
const NOT_OF_THE_RESPONSE = new Set([
  ...['connection', 'keep-alive', 'transfer-encoding'],
  ...['x-request-id', 'idempotent-original-request-id'],
]);

/** An answer's header lines in their order and case, without those that differ between answers. */
export function endToEndLines({ rawHeaders }: Pick<TestAnswer, 'rawHeaders'>): [string, string][] {
  const lines: [string, string][] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const [name = '', value = ''] = rawHeaders.slice(at, at + 2);
    if (!NOT_OF_THE_RESPONSE.has(name.toLowerCase())) lines.push([name, value]);
  }
  return lines;
}

/** The values of a header, one for each of its lines. */
export function linesOf(rawHeaders: readonly string[], name: string): string[] {
  return rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === name);
}

/** The ids of the request that got this answer, and of the first one with its key: one for each header line. */
export const idsOf = ({ rawHeaders }: Pick<TestAnswer, 'rawHeaders'>) => ({
  own: linesOf(rawHeaders, 'x-request-id'),
  first: linesOf(rawHeaders, 'idempotent-original-request-id'),
});
