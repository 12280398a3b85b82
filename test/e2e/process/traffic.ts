import { randomUUID } from 'node:crypto';
import http from 'node:http';
import https from 'node:https';
import { type TestAnswer, withdraw } from '../../support/client.ts';

/** One withdraw under a unique key: how it ended, and when. */
export interface Sent {
  key: string;
  /** Whether its connection had carried an answer before. */
  reused: boolean;
  endedAtMs: number;
  /** Set if a whole answer arrived. */
  answer?: TestAnswer;
  /** The client's error, if no answer arrived. */
  error?: string | undefined;
}

export interface Traffic {
  sent: Sent[];
  /** Stops after the requests in flight are answered. A merchant who gets no answer stops without it. */
  stop(): Promise<void>;
}

interface TrafficOptions {
  /** False: each withdraw has a connection of its own. */
  keepAlive?: boolean;
  /** For https: the authority of the gateway's certificate. */
  ca?: Buffer;
}

/** Merchants who each send one withdraw after the other over one connection, as long as the gateway keeps it open. */
export function startTraffic(
  url: string,
  merchants: number,
  { keepAlive = true, ca }: TrafficOptions = {},
): Traffic {
  const { Agent } = url.startsWith('https:') ? https : http;
  const sent: Sent[] = [];
  let stopped = false;
  const merchant = async (_: unknown, at: number) => {
    const agent = new Agent({ keepAlive, maxSockets: 1 });
    const connect = agent.createConnection.bind(agent);
    let connections = 0;
    agent.createConnection = (...args) => {
      connections++;
      return connect(...args);
    };
    while (!stopped) {
      const [key, before] = [randomUUID(), connections];
      const options = { key, amount: 1, agent, fault: `delay=${20 + 15 * at}`, ...(ca && { ca }) };
      const end: Pick<Sent, 'answer' | 'error'> = await withdraw(url, options).then(
        (answer) => ({ answer }),
        ({ code, message }: NodeJS.ErrnoException) => ({ error: code ?? message }),
      );
      sent.push({ key, reused: connections === before, endedAtMs: performance.now(), ...end });
      if (end.error !== undefined) break;
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
