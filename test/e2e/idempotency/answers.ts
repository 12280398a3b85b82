import type { TestAnswer } from '../../support/client.ts';

/** Fields of the connection between the merchant and the gateway. */
const OF_THE_CONNECTION = new Set(['connection', 'keep-alive', 'transfer-encoding']);

/** An answer's header lines in their order and case, without those of the connection. */
export function endToEndLines({ rawHeaders }: Pick<TestAnswer, 'rawHeaders'>): [string, string][] {
  const lines: [string, string][] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const [name = '', value = ''] = rawHeaders.slice(at, at + 2);
    if (!OF_THE_CONNECTION.has(name.toLowerCase())) lines.push([name, value]);
  }
  return lines;
}
