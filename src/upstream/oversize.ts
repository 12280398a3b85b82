import { Readable } from 'node:stream';
import type { Dispatcher } from 'undici';

/** The gateway ended a stream. The message says why. */
class StreamCut extends Error {
  override readonly name = 'StreamCut';
}

/**
 * The oversize responses that are being streamed. Each keeps its slot and its connection, so they may be at most half as
 * many as there are connections (at least one): merchants who do not read cannot take the other half.
 */
export class OversizeStreams {
  readonly #max: number;
  readonly #open = new Set<OversizeBody>();
  /** Streams whose merchant does not read now. The one that has waited longest comes first. */
  readonly #stalled = new Set<OversizeBody>();

  constructor(maxConnections: number) {
    this.#max = Math.max(1, Math.floor(maxConnections / 2));
  }

  /** If there are too many now, cuts the stream that has stalled for the longest time, or `body` if none has. */
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

/** The body of an oversize response. The backend sends it at the merchant's pace. */
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
    // The merchant's end of the pipeline reports errors; this one may break before it is connected.
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

  /** If the merchant leaves, the connection to the backend ends. The outcome is known by now. */
  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.#silence);
    this.#streams.end(this);
    this.#controller.abort(error ?? new StreamCut('the merchant has left'));
    done(error);
  }

  #cutIfSilent(silenceMs: number): void {
    if (!this.#controller.paused) this.destroy(new StreamCut(`the backend sent nothing for ${silenceMs} ms`));
  }
}
