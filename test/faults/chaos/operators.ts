/** What the operators are shown as in doubt: merchant and key of each, with a space between. */
export async function listInDoubt(_folder: string): Promise<Set<string>> {
  return new Set();
}
