const steps: (() => unknown)[] = [];

/**
 * Takes a step at the end of each test file, for modules that keep what has to be ended. They cannot call `afterAll` themselves:
 * a process runs many files, and imports a module once.
 */
export function atEndOfFile(step: () => unknown): void {
  steps.push(step);
}

/** The last ones first: what was opened on something else ends before it. @throws the first error, when all steps were taken */
export async function endFile(): Promise<void> {
  const errors: unknown[] = [];
  for (const step of steps.toReversed())
    try {
      await step();
    } catch (error) {
      errors.push(error);
    }
  if (errors.length > 0) throw errors[0];
}
