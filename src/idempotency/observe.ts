import type { IncomingMessage, ServerResponse } from 'node:http';
import { contextOf, type Middleware } from '../lib/context.ts';
import type { Taken } from '../requests/body.ts';
import type { Emit } from '../telemetry/emit.ts';
import type { Would } from '../telemetry/label-values.ts';
import { isQuoted, readKey } from './key.ts';
import type { Observation, ObservedCall } from './observation.ts';
import { KeyedRequest } from './protect.ts';

export interface ObserveOptions {
  observation: Observation;
  /** See the option `layer`. */
  layer: string;
  /** Header names in lower case, see {@link readKey}. */
  headers: readonly string[];
  /** Reads the body into the request's context, unless it is too large. A problem: it did not arrive in time. */
  takeBody(req: IncomingMessage, res: ServerResponse): Taken | Promise<Taken>;
  emit: Emit;
}

/** `mode: observe`: passes every request on, and lets the forwarder observe those that `mode: protect` would handle. */
export function observe(options: ObserveOptions): Middleware {
  return async (req, res, next) => {
    const context = contextOf(req);
    const { identity } = context;
    if (!identity) throw new Error('the request has no operation: identify must come before observe');
    if (!identity.isProtected && !identity.keyRequired) return next();
    const { name } = identity.operation;
    const note = (would: Would) => {
      context.would = would;
      options.emit('observed', { operation: name, would });
    };
    const reading = readKey(req.rawHeaders, options.headers);
    if (reading.kind === 'invalid') note('invalid_key');
    else if (reading.kind === 'none' && identity.keyRequired) note('key_required');
    else if (reading.kind === 'none' && identity.isDeclared) options.emit('unprotected', { operation: name });
    if (reading.kind !== 'key') return next();
    context.ignoredKeyHeaders = reading.ignored;
    const taken = await options.takeBody(req, res);
    if (taken === 'gone') return;
    if (taken === 'too_large') note('body_too_large');
    else if (taken !== 'read') return next(taken);
    else {
      const call = new KeyedRequest(req, context, options.layer, reading.key);
      // The backend gets this key with its quotes. A lookup or a second request would have none, and the backend would not know it. As
      // another operation, its record waits for a person.
      const isHeld = call.inDoubt !== 'hold' && isQuoted(req.rawHeaders, options.headers);
      const observed: ObservedCall = isHeld ? { ...call, operation: 'other', inDoubt: 'hold' } : call;
      context.observe = () =>
        options.observation.begin(observed, (would) => {
          context.would = would;
        });
    }
    next();
  };
}
