import { readdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { describe, expect, it } from 'vitest';
import { problem } from '../../src/lib/problem.ts';
import { type ProblemCode, problemCodes } from '../../src/lib/problem-table.ts';
import { declarationOf, requestSteps, type Step, withoutComments } from '../support/architecture.ts';
import { ROOT, read } from '../support/repository.ts';

const TEXT = read('docs/architecture.md');

describe('docs/architecture.md', () => {
  const steps = requestSteps();

  it('names functions that there are', () => {
    const named = [...TEXT.matchAll(/\[`([^`]+)`\]\(\.\.\/([^)]+)\)/g)];
    expect(named.length).toBeGreaterThan(40);
    const missing = named.filter(([, name = '', file = '']) => declarationOf(read(file), name) === undefined);
    expect(missing.map(([, name, file]) => `${name} in ${file}`)).toEqual([]);
  });

  it('has the steps of a request in the order in which the step above calls them', () => {
    expect(steps.length).toBeGreaterThan(40);
    /** How far into each step its calls have been found. */
    const reached = new Map<Step, number>();
    for (const step of steps) {
      const { called, defined, file, source, parent } = step;
      expect(declarationOf(source, defined), `${defined} in ${file}`).toBeDefined();
      if (!parent) continue;
      const from = reached.get(parent) ?? 0;
      const body = (declarationOf(parent.source, parent.defined)?.text ?? '').replace(/^.*\n/, '\n');
      const call = new RegExp(`(?<!\\w)${called}(?!\\w)`).exec(body.slice(from));
      expect(call, `${parent.defined} calls ${called}, behind the steps before it`).not.toBeNull();
      reached.set(parent, from + (call?.index ?? 0) + 1);
    }
  });

  it('has every status of the gateway, each at a step whose source has its code', () => {
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
    const shown = steps.flatMap((step) => step.exits.map(({ status }) => status));
    const statuses = problemCodes.map((code) => problem(code, '').status);
    expect(statuses.filter((status) => !shown.includes(status))).toEqual([]);
  });

  it('leaves out no status with which the file of a step answers', () => {
    for (const { file, source } of steps.filter((step) => step.file !== 'idempotency/answer.ts')) {
      const [, ...refusals] = source.split(/(?:problem|refused)\((?=\s*'\w+')/);
      const given = refusals.flatMap((text) => {
        const code = problemCodes.find((one) => text.trimStart().startsWith(`'${one}'`));
        const [, other] = /\bstatus(?:: (\d+))?/.exec(text) ?? [undefined, 'the usual one'];
        // A status that is computed is not in the source.
        if (!code || other === undefined) return [];
        return [Number(other) || problem(code, '').status];
      });
      const listed = steps
        .filter((step) => step.file === file)
        .flatMap(({ exits, parent }) => [...exits, ...(parent?.exits ?? [])].map(({ status }) => status));
      expect(
        given.filter((status) => !listed.includes(status)),
        file,
      ).toEqual([]);
    }
  });
});

describe('src', () => {
  const files = readdirSync(`${ROOT}src`, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => `${parentPath}/${name}`.slice(ROOT.length));

  it('has no folder with more than 15 files', () => {
    const folders = Object.entries(Object.groupBy(files, (file) => dirname(file)));
    expect(folders.length).toBeGreaterThan(15);
    expect(folders.filter(([, own = []]) => own.length > 15).map(([folder]) => folder)).toEqual([]);
  });

  it('has no TypeScript file with more than 350 lines', () => {
    const long = files.filter(
      (file) => /\.tsx?$/.test(file) && read(file).trimEnd().split('\n').length > 350,
    );
    expect(long).toEqual([]);
  });
});
