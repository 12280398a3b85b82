import type { IncomingMessage, ServerResponse } from 'node:http';
import { httpBackend } from './backend.ts';

/** A backend that knows its merchants' secret keys, and counts how often it was asked. Closed after the test. */
export interface KeyBackend {
  url: string;
  /** Merchant codes by secret key. The test may change them. */
  keys: Map<string, string>;
  /** The secret keys of the probes, in their order. */
  probes: string[];
  /** The X-Merchant-Code of each other request. */
  requests: string[];
  /** Most probes that were unanswered at once. */
  mostAtOnce: number;
  /** Answers probes. Default: by {@link keys}. */
  answer: ((res: ServerResponse, req: IncomingMessage) => void) | undefined;
}

export async function openKeyBackend(): Promise<KeyBackend> {
  let open = 0;
  const backend: KeyBackend = {
    url: '',
    keys: new Map([
      ['sk_a', 'M-A'],
      ['sk_b', 'M-B'],
    ]),
    ...{ probes: [], requests: [], mostAtOnce: 0, answer: undefined },
  };
  backend.url = await httpBackend((req, res) => {
    req.resume();
    if (req.url !== '/v2/get_balance') {
      backend.requests.push(String(req.headers['x-merchant-code']));
      res.writeHead(201, { 'Content-Type': 'application/json' }).end('{"success":true,"data":{"id":1}}');
      return;
    }
    const secret = String(req.headers.authorization).replace('Bearer ', '');
    backend.probes.push(secret);
    backend.mostAtOnce = Math.max(backend.mostAtOnce, ++open);
    res.once('close', () => open--);
    if (backend.answer) backend.answer(res, req);
    else answerBy(backend.keys.get(secret), res);
  });
  return backend;
}

/** Answers for a key of this merchant, or for an unknown key. */
export function answerBy(code: unknown, res: ServerResponse): void {
  res.writeHead(code === undefined ? 401 : 200, { 'Content-Type': 'application/json' });
  res.end(
    JSON.stringify(
      code === undefined ? { success: false } : { success: true, data: { merchant_code: code } },
    ),
  );
}
