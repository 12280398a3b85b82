import type { DeclaredOperation } from './declared-paths.ts';
import { identificationOf } from './match-options.ts';
import { Operations, type OperationsOptions } from './operations.ts';

/** The operations of each configuration that was in force in this process. */
export class OperationsHistory {
  readonly #options: Omit<OperationsOptions, 'earlier'>;
  readonly #versions = new Map<string, Operations>();

  constructor(options: Omit<OperationsOptions, 'earlier'>) {
    this.#options = options;
  }

  /** Operations that protect every request which an earlier version protected: see {@link OperationsOptions.earlier}. */
  next(declared: readonly DeclaredOperation[]): Operations {
    const identification = identificationOf(declared);
    const earlier = [...this.#versions].flatMap(([other, operations]) =>
      other === identification ? [] : [operations],
    );
    const operations = new Operations(declared, { ...this.#options, earlier });
    this.#versions.set(identification, operations);
    return operations;
  }
}
