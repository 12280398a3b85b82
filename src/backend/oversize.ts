import { Readable } from 'node:stream';
import type { Dispatcher } from 'undici';

/** The gateway cut a stream, or the backend may have. The message says why. */
export class StreamCut extends Error {
  override readonly name = 'StreamCut';
}

/**
 * The oversize responses that are being streamed. Each occupies a slot and a connection until its merchant has read it. At
 * most half of the connections (at least one) may be occupied so, to leave the others to payouts.
 */
export class OversizeStreams {
  readonly #max: number;
  readonly #open = new Set<OversizeBody>();
  /** Streams that wait for their merchant to read. A Set keeps the order of insertion, so the first one has waited longest. */
  readonly #stalled = new Set<OversizeBody>();

  constructor(maxConnections: number) {
    this.#max = Math.max(1, Math.floor(maxConnections / 2));
  }

  /** If there are too many streams now, cuts the one that has stalled for the longest time, or `body` if none has stalled. */
  begin(body: OversizeBody): void {
    this.#open.add(body);
    if (this.#open.size <= this.#max) return;
    const [longest = body] = this.#stalled;
    longest.destroy(new StreamCut('too many oversize responses at once'));
  }

  stall(body: OversizeBody): void {
    this.#stalled.add(body);
  }

  resume(body: OversizeBody): void {
    this.#stalled.delete(body);
  }

  end(body: OversizeBody): void {
    this.#open.delete(body);
    this.#stalled.delete(body);
  }
}

/** The body of an oversize response, with backpressure from the merchant to the backend. */
export class OversizeBody extends Readable {
  readonly #controller: Dispatcher.DispatchController;
  readonly #streams: OversizeStreams;
  readonly #silence: NodeJS.Timeout;

  /** @param silenceMs how long the backend may send nothing while the merchant reads */
  constructor(controller: Dispatcher.DispatchController, streams: OversizeStreams, silenceMs: number) {
    super();
    this.#controller = controller;
    this.#streams = streams;
    this.#silence = setTimeout(() => this.#cutIfSilent(silenceMs), silenceMs);
    // The stream may break before its reader has attached an error listener.
    this.on('error', () => {});
  }

  receive(chunk: Buffer): void {
    if (this.destroyed) return;
    this.#silence.refresh();
    if (this.push(chunk)) return;
    this.#controller.pause();
    this.#streams.stall(this);
  }

  receivedAll(): void {
    clearTimeout(this.#silence);
    this.push(null);
  }

  override _read(): void {
    if (!this.#controller.paused) return;
    this.#streams.resume(this);
    this.#silence.refresh();
    this.#controller.resume();
  }

  /** Also closes the connection to the backend. The outcome is known by now, so nothing is lost. */
  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.#silence);
    this.#streams.end(this);
    this.#controller.abort(error ?? new StreamCut('the merchant has disconnected'));
    done(error);
  }

  #cutIfSilent(silenceMs: number): void {
    if (!this.#controller.paused) this.destroy(new StreamCut(`the backend sent nothing for ${silenceMs} ms`));
  }
}
