import { describe, expect, it } from 'vitest';
import { operationsOpenedBy, PublicPaths } from '../../src/requests/public-paths.ts';
import { incoming } from '../support/incoming.ts';
import { balance, declare, operationsOf } from '../support/operations.ts';

const refund = declare('refund', { method: 'POST', path: '/v1/payments/:id/refund' });
const operations = operationsOf([balance, refund]);

describe('a public pattern that meets the pattern of an operation', () => {
  const open = { method: 'POST', path: '/v1/:what/p-1/:how' };
  const paths = new PublicPaths([open], operations);
  const isPublic = (url: string) => paths.identityOf(incoming('POST', url)) !== undefined;

  it('opens no request that is, or resembles, one of the operation', () => {
    // The configuration's check compares samples, and cannot see where these two meet.
    expect(operationsOpenedBy(open, [balance, refund])).toEqual([]);
    for (const url of ['/v1/payments/p-1/refund', '/v1/payments/p-1/REFUND', '/v1/Payments/p-1/refund;a'])
      expect(isPublic(url), url).toBe(false);
  });

  it('opens the others', () => {
    for (const url of ['/v1/payments/p-1/notify', '/v1/orders/p-1/refund?a=1'])
      expect(isPublic(url), url).toBe(true);
  });
});

it('a public path opens no operation with a dot in its name behind it, but the path whose format it may be', () => {
  const opened = (open: string, path: string) =>
    operationsOpenedBy({ method: 'GET', path: open }, [declare('one', { method: 'POST', path })]);
  for (const path of ['/api/docs.create', '/api/docs.:call', '/api/docs.html.create'])
    expect(opened('/api/docs', path), path).toEqual([]);
  expect(opened('/api/:page', '/api/docs.create')).toEqual(['one']);
  expect(opened('/api/docs.csv', '/api/docs')).toEqual(['one']);
});
