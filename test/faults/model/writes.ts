// @ts-nocheck until the rules are the reference of this suite
import { expect } from 'vitest';
import type { Fenced, Store } from '../../../src/store/contract.ts';
import { Checked } from './checked.ts';
import type { Reference } from './reference.ts';
import type { Attempt, Model } from './state.ts';

/** A write under a token, including late writes and those of attempts that never started. */
abstract class TokensWrite<Parts = object> extends Checked<Parts & { writer: number; times: number }> {
  override check(model: Readonly<Model>) {
    const attempt = model.writer(this.parts.writer);
    return attempt !== undefined && this.allows(attempt, model);
  }
  protected allows(_: Attempt, __: Readonly<Model>): boolean {
    return true;
  }
  protected async act(model: Model) {
    const attempt = model.writer(this.parts.writer) as Attempt;
    for (let times = 0; times < this.parts.times; times++)
      expect(await this.write(attempt.node, attempt)).toBe(this.expected(model.reference, attempt));
  }
  protected abstract write(store: Store, attempt: Attempt): Promise<string>;
  protected abstract expected(reference: Reference, attempt: Attempt): string;
}

export class Renew extends TokensWrite {
  // An engine renews only executions that it started, and not after it gave them up.
  protected override allows = ({ owned, gaveUp }: Attempt) => owned && !gaveUp;
  protected write = (store: Store, { execution }: Attempt) => store.renew(execution);
  protected expected = (reference: Reference, { execution }: Attempt) => reference.renew(execution);
}

export class Complete extends TokensWrite {
  protected write = (store: Store, { execution, result }: Attempt) => store.complete(execution, result);
  protected expected = (reference: Reference, { execution, result }: Attempt): Fenced =>
    reference.complete(execution, result);
}

export class Release extends TokensWrite<{ voidToken: boolean }> {
  protected write = (store: Store, { execution }: Attempt) => store.release(execution, this.parts);
  protected expected = (reference: Reference, { execution }: Attempt) =>
    reference.release(execution, this.parts);
}

export class MarkInDoubt extends TokensWrite<{ voidToken: boolean }> {
  protected write = (store: Store, { execution }: Attempt) => store.markInDoubt(execution, this.parts);
  protected expected(reference: Reference, attempt: Attempt) {
    attempt.gaveUp = true;
    return reference.markInDoubt(attempt.execution, this.parts);
  }
}

/** Its process is gone: it never writes again. */
export class Crash extends Checked<{ writer: number }> {
  override check(model: Readonly<Model>) {
    return model.writer(this.parts.writer) !== undefined;
  }
  protected async act(model: Model) {
    (model.writer(this.parts.writer) as Attempt).crashed = true;
  }
}
