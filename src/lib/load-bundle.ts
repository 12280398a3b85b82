import { readFileSync } from 'node:fs';
import Module, { createRequire } from 'node:module';
// The whole module: a named import that an old Node lacks would fail before src/main.ts can say which Node is needed.
import vm from 'node:vm';

/**
 * Loads a CommonJS bundle with the code that V8 compiled of it when the bundle was made. Compiling takes a quarter of a start. The
 * code is beside the bundle, so only who can replace the bundle can replace the code. Node's own compile cache needs a folder that
 * the process can write and nobody else can, and it lacks the functions that are compiled at their first call.
 */
export function loadBundle(file: string): { script: vm.Script; exports: unknown } {
  const cachedData = compiledCode(file);
  const script = new vm.Script(Module.wrap(readFileSync(file, 'latin1')), {
    filename: file,
    ...(cachedData && { cachedData }),
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
  const module = { exports: {} };
  script.runInThisContext()(module.exports, createRequire(file), module, file);
  return { script, exports: module.exports };
}

/** Only the Node that wrote the code reads it. Another one compiles the bundle. */
export const compiledCodeFile = (bundle: string): string =>
  `${bundle}.${process.version}-${process.platform}-${process.arch}`;

function compiledCode(bundle: string): Buffer | undefined {
  try {
    return readFileSync(compiledCodeFile(bundle));
  } catch {
    return undefined;
  }
}
