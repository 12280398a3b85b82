/** One guard of the promise, the mutation that removes it, and the test that must fail then. */
export type Guard = readonly [
  /** What goes wrong without the guard, for ADR 10 and the output. */
  without: string,
  /**
   * `within`: the name of a function, method, constant or class of the file, or '' for the whole file. `text` occurs exactly once
   * there, and is a part of one line, so that code can move within a file.
   */
  mutation: readonly [file: string, within: string, text: string, replacement: string],
  /** `test`: without `test/` and `.test.ts`. `named`: which of its tests, by a part of their full names: `suite > test`. */
  noticed: readonly [test: string, named: string],
];
