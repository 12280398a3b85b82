import { describe, expect, it } from 'vitest';
import { type ProblemCode, problem, problemCodes } from '../../src/lib/problem.ts';
import { read } from '../support/repository.ts';

const TEXT = read('docs/architecture.md');

/** The lines of a source from the declaration of a name to its end, if it is declared there. */
function bodyOf(source: string, name: string): string | undefined {
  const declared = `(?:function|class|interface|const|type) ${name}\\b`;
  const method = `(?:async )?${name}(?:<[^>]*>)?\\((?:.*[^;])?$`;
  const field = `(?:readonly )?${name}(?:: \\w+)? = `;
  const found = new RegExp(`^( *)(?:export )?(?:async )?(?:${declared}|${method}|${field})`, 'm').exec(
    source,
  );
  if (!found) return undefined;
  const rest = source.slice(found.index);
  // The formatter puts the end of a declaration below its beginning.
  const end = new RegExp(`^${found[1]}\\}`, 'm').exec(rest);
  return rest.slice(0, end?.index);
}

const withoutComments = (source: string) => source.replace(/^ *(?:\/\/|\/?\*).*$/gm, '');

interface Step {
  /** The name by which it is called, and the one by which its own file calls it. */
  called: string;
  defined: string;
  file: string;
  source: string;
  exits: { status: number; code: string }[];
  parent: Step | undefined;
}

/** The tree of the document. */
function stepsOf(text: string): Step[] {
  const [, tree = ''] = /```text\n(.*?)```/s.exec(text) ?? [];
  const above: Step[] = [];
  return tree
    .trimEnd()
    .split('\n')
    .map((line) => {
      const form = /^([│├└─ ]*)(#?\w+)(?: = (\w+))? {2,}([\w/-]+\.ts)(?: {2,}(.*))?$/;
      const [, indent = '', called = '', defined = called, file = '', exits = ''] = form.exec(line) ?? [];
      expect(called, line).not.toBe('');
      const listed = exits.matchAll(/(\d{3}(?:, \d{3})*) (\w+(?:, \w+)*)/g);
      const depth = indent.length / 3;
      const step = {
        ...{ called, defined, file, parent: above[depth - 1] },
        source: withoutComments(read(`src/${file}`)),
        exits: [...listed].flatMap(([, statuses = '', codes = '']) =>
          codes
            .split(', ')
            .flatMap((code) => statuses.split(', ').map((status) => ({ status: Number(status), code }))),
        ),
      };
      above.splice(depth, above.length, step);
      return step;
    });
}

describe('docs/architecture.md', () => {
  const steps = stepsOf(TEXT);

  it('names functions that there are', () => {
    const named = [...TEXT.matchAll(/\[`([^`]+)`\]\(\.\.\/([^)]+)\)/g)];
    expect(named.length).toBeGreaterThan(40);
    const missing = named.filter(([, name = '', file = '']) => bodyOf(read(file), name) === undefined);
    expect(missing.map(([, name, file]) => `${name} in ${file}`)).toEqual([]);
  });

  it('has the steps of a request in the order in which the step above calls them', () => {
    expect(steps.length).toBeGreaterThan(40);
    /** How far into each step its calls have been found. */
    const reached = new Map<Step, number>();
    for (const step of steps) {
      const { called, defined, file, source, parent } = step;
      expect(bodyOf(source, defined), `${defined} in ${file}`).toBeDefined();
      if (!parent) continue;
      const from = reached.get(parent) ?? 0;
      const body = (bodyOf(parent.source, parent.defined) ?? '').replace(/^.*\n/, '\n');
      const call = new RegExp(`(?<!\\w)${called}(?!\\w)`).exec(body.slice(from));
      expect(call, `${parent.defined} calls ${called}, behind the steps before it`).not.toBeNull();
      reached.set(parent, from + (call?.index ?? 0) + 1);
    }
  });

  it('has every answer of the gateway at a step whose source has it, with its status', () => {
    const engineAnswers = withoutComments(read('src/idempotency/answer.ts'));
    const sourcesOf = (step: Step) =>
      steps
        .filter(({ parent }) => parent === step)
        .concat(step)
        .map(({ source }) => source)
        .concat(engineAnswers);
    for (const step of steps)
      for (const { status, code } of step.exits) {
        const sources = sourcesOf(step).filter((source) => source.includes(`'${code}'`));
        const usual = problem(code as ProblemCode, '').status;
        const has = sources.some((one) => status === usual || new RegExp(`\\b${status}\\b`).test(one));
        expect(has, `${step.defined} answers ${status} ${code}`).toBe(true);
      }
    const exits = steps.flatMap((step) => step.exits.map(({ code }) => code));
    expect(problemCodes.filter((code) => !exits.includes(code))).toEqual([]);
  });

  it('leaves out no answer that the file of a step gives', () => {
    for (const { file, source } of steps.filter((step) => step.file !== 'idempotency/answer.ts')) {
      const given = problemCodes.filter((code) =>
        new RegExp(`(?:problem|refused)\\(\\s*'${code}'`).test(source),
      );
      const listed = steps
        .filter((step) => step.file === file)
        .flatMap(({ exits, parent }) => [...exits, ...(parent?.exits ?? [])].map(({ code }) => code));
      expect(
        given.filter((code) => !listed.includes(code)),
        file,
      ).toEqual([]);
    }
  });
});
