import { randomUUID } from 'node:crypto';
import { Agent, request } from 'node:http';

/** One withdraw under a unique key: how it ended, and when. */
export interface Sent {
  key: string;
  /** Whether its connection had carried an answer before. */
  reused: boolean;
  endedAtMs: number;
  /** Set if a whole answer arrived. */
  answer?: { status: number; body: string };
  /** The client's error, if no answer arrived. */
  error?: string | undefined;
}

export interface Traffic {
  sent: Sent[];
  /** Stops after the requests in flight are answered. A merchant who gets no answer stops without it. */
  stop(): Promise<void>;
}

/** Merchants who each send one withdraw after the other over one connection, as long as the gateway keeps it open. */
export function startTraffic(url: string, merchants: number): Traffic {
  const sent: Sent[] = [];
  let stopped = false;
  const merchant = async (_: unknown, at: number) => {
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    while (!stopped) {
      const last = await withdrawOn(agent, url, 20 + 15 * at);
      sent.push(last);
      if (last.error !== undefined) break;
    }
    agent.destroy();
  };
  const over = Promise.all(Array.from({ length: merchants }, merchant));
  return {
    sent,
    async stop() {
      stopped = true;
      await over;
    },
  };
}

function withdrawOn(agent: Agent, url: string, delayMs: number): Promise<Sent> {
  const key = randomUUID();
  const headers = {
    Authorization: 'Bearer sk_sandbox_alpha',
    'Content-Type': 'application/json',
    'x-service-idempotency': key,
    'X-Sandbox-Fault': `delay=${delayMs}`,
  };
  return new Promise((resolve) => {
    const req = request(new URL('/v1/index.php', url), { method: 'POST', agent, headers });
    const end = (how: Pick<Sent, 'answer' | 'error'>) =>
      resolve({ key, reused: req.reusedSocket, endedAtMs: performance.now(), ...how });
    const fail = ({ code, message }: NodeJS.ErrnoException) => end({ error: code ?? message });
    req.once('error', fail).once('response', (res) => {
      let body = '';
      res.on('data', (chunk) => {
        body += chunk;
      });
      res.once('error', fail).once('end', () => end({ answer: { status: res.statusCode ?? 0, body } }));
    });
    req.end('{"action":"withdraw","amount":1,"bank_code":"058","account_number":"0123456789"}');
  });
}
