import type { IncomingHttpHeaders } from 'node:http';
import type { Order } from './transaction.ts';

/** The idempotency key header as it was received, quotes and all. */
export function keyOf(headers: IncomingHttpHeaders): string | undefined {
  return (headers['x-service-idempotency'] ?? headers['idempotency-key'])?.toString();
}

/** What the request said about itself, kept for witnesses and otherwise without effect. */
export function notesOf(headers: IncomingHttpHeaders): Pick<Order, 'idempotencyKey' | 'requestId'> {
  return { idempotencyKey: keyOf(headers), requestId: headers['x-request-id']?.toString() };
}
