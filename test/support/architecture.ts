import { read } from './repository.ts';

/** A step of the tree in docs/architecture.md. */
export interface Step {
  /** The name by which the step above calls it, and the one by which its own file calls it. */
  called: string;
  defined: string;
  /** The path in `src`, and the text without its comments. */
  file: string;
  source: string;
  /** A first payout enters it. */
  isEntered: boolean;
  exits: { status: number; code: string }[];
  parent: Step | undefined;
}

const FORM = /^([* ]) ([│├└─ ]*)(#?\w+)(?: = (\w+))? {2,}([\w/-]+\.ts)(?: {2,}(.*))?$/;

/** The tree of docs/architecture.md, from top to bottom. @throws if a line has another form */
export function requestSteps(): Step[] {
  const [, tree = ''] = /```text\n(.*?)```/s.exec(read('docs/architecture.md')) ?? [];
  const above: Step[] = [];
  return tree
    .trimEnd()
    .split('\n')
    .map((line) => {
      const found = FORM.exec(line);
      if (!found) throw new Error(`no step of the tree: ${line}`);
      const [, mark, indent = '', called = '', defined = called, file = '', exits = ''] = found;
      const depth = indent.length / 3;
      const step = {
        ...{ called, defined, file, parent: above[depth - 1] },
        source: withoutComments(read(`src/${file}`)),
        isEntered: mark === '*',
        exits: [...exits.matchAll(/(\d{3}(?:, \d{3})*) (\w+(?:, \w+)*)/g)].flatMap(
          ([, statuses = '', codes = '']) =>
            codes
              .split(', ')
              .flatMap((code) => statuses.split(', ').map((status) => ({ status: Number(status), code }))),
        ),
      };
      above.splice(depth, above.length, step);
      return step;
    });
}

/** With the same numbers of lines. */
export const withoutComments = (source: string): string => source.replace(/^ *(?:\/\/|\/?\*).*$/gm, '');

/**
 * Where a source declares a function, method, class, interface or constant: from its first line to its last one, which the
 * formatter puts below it.
 */
export function declarationOf(
  source: string,
  name: string,
): { text: string; firstLine: number; lastLine: number } | undefined {
  const declared = `(?:function|class|interface|const|type) ${name}\\b`;
  const method = `(?:async )?${name}(?:<[^>]*>)?\\((?:.*[^;])?$`;
  const field = `(?:readonly )?${name}(?:: \\w+)? = `;
  const found = new RegExp(`^( *)(?:export )?(?:async )?(?:${declared}|${method}|${field})`, 'm').exec(
    source,
  );
  if (!found) return undefined;
  const rest = source.slice(found.index);
  const end = new RegExp(`^${found[1]}\\}`, 'm').exec(rest);
  const text = rest.slice(0, end?.index);
  const firstLine = source.slice(0, found.index).split('\n').length;
  return { text, firstLine, lastLine: firstLine + text.split('\n').length - 1 };
}
