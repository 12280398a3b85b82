import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Authenticator } from '../auth/authenticate.ts';
import { insufficientScope, mayCall, neededScope } from '../auth/authorise.ts';
import { contextOf } from '../kernel/context.ts';
import type { Problem } from '../kernel/problem.ts';
import type { Access } from '../observability/access.ts';
import { refusalOfHead, refusalOfRoute } from '../operations/match.ts';
import type { Operations } from '../operations/operations.ts';
import type { Passthrough } from '../upstream/passthrough.ts';
import { type Admission, refusalToAdmit } from './admit.ts';
import { endSoon, refuseOnSocket } from './http-server.ts';

export interface UpgradesOptions {
  access: Access;
  admission: Admission;
  authenticator: Authenticator;
  operations: Operations;
  /** Named in challenges. */
  realm: string;
  passthrough: Passthrough;
}

/** WebSockets: the request's path once more for handshakes, which have no response object, and what became of them. */
export class Upgrades {
  readonly #options: UpgradesOptions;
  readonly #open = new Set<Duplex>();

  constructor(options: UpgradesOptions) {
    this.#options = options;
  }

  /** Refuses the handshake on its socket, or passes it on. */
  take(req: IncomingMessage, socket: Socket, head: Buffer): void {
    const { access, admission, passthrough } = this.#options;
    const context = access.begin(req, socket);
    socket.on('error', () => {});
    const refusal = refusalToAdmit(admission) ?? refusalOfHead(req) ?? this.#refusal(req);
    context.outcome = refusal?.code ?? 'upgraded';
    if (refusal) {
      refuseOnSocket(socket, refusal, context.requestId);
      return;
    }
    context.passedThrough = 'connecting';
    this.#open.add(socket);
    socket.once('close', () => this.#open.delete(socket));
    // A merchant who does not close, or whose last bytes nobody reads, would keep the connection for good.
    socket.once('finish', () => endSoon(socket));
    passthrough.upgrade(req, socket, head);
  }

  /** Ends all of them at once. */
  end(): void {
    for (const socket of this.#open) socket.destroy();
  }

  #refusal(req: IncomingMessage): Problem | undefined {
    const { authenticator, operations, realm } = this.#options;
    const context = contextOf(req);
    const authentication = authenticator.authenticate(req.rawHeaders);
    if (authentication.kind === 'refused') return authentication.problem;
    context.merchant = authentication.merchant;
    const match = operations.byHead(req.method ?? '', req.url ?? '');
    const refusal = refusalOfRoute(match, req);
    if (refusal) return refusal;
    if (match.kind === 'operation') context.operation = match.operation;
    const needed = neededScope(context);
    return mayCall(authentication.merchant, needed) ? undefined : insufficientScope(needed, realm);
  }
}
