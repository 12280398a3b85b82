/**
 * A reader for the part of PromQL that the dashboard and the rules use. It finds which metrics and labels an expression
 * needs, and which labels its result has. It is strict: it refuses what it does not know.
 */

export interface Matcher {
  label: string;
  op: string;
  value: string;
}

export type Expr =
  /** A number, a text, or a number that has no labels: `time()`. */
  | { kind: 'literal'; text: string }
  | { kind: 'selector'; name: string; matchers: Matcher[] }
  | { kind: 'call'; name: string; args: Expr[] }
  | { kind: 'aggregate'; by: string[]; arg: Expr }
  | { kind: 'binary'; op: string; left: Expr; right: Expr };

const TOKEN =
  /\s*(?:("(?:[^"\\]|\\.)*")|(\[[^\]]*\])|(\d+(?:\.\d+)?[smhd]?)|([a-zA-Z_:][\w:]*)|(==|!=|>=|<=|=~|!~|[-+*/<>=(){},]))/y;
const RANGE = /^\[(?:\d+[smhd]|\$__rate_interval)\]$/;

const AGGREGATIONS = ['sum', 'min', 'max', 'avg', 'count'];
const FUNCTIONS = [
  ...[
    'rate',
    'increase',
    'max_over_time',
    'last_over_time',
    'histogram_quantile',
    'absent',
    'clamp_max',
    'label_replace',
  ],
  ...['vector', 'time'],
];
const OPERATORS = ['+', '-', '*', '/', '==', '!=', '>', '<', '>=', '<=', 'and', 'or', 'unless'];

/** @throws Error that says what is wrong */
export function parsePromql(text: string): Expr {
  const tokens = [...tokensOf(text)];
  const parser = new Parser(tokens, text);
  const expr = parser.expression();
  parser.end();
  return expr;
}

function* tokensOf(text: string): Generator<string> {
  const whole = text.trimEnd();
  for (let at = 0; at < whole.length; at = TOKEN.lastIndex) {
    TOKEN.lastIndex = at;
    const token = TOKEN.exec(whole)?.slice(1).find(Boolean);
    if (token === undefined) throw new Error(`cannot be read from here: ${whole.slice(at)}`);
    if (token.startsWith('[') && !RANGE.test(token)) throw new Error(`no range: ${token}`);
    yield token;
  }
}

class Parser {
  readonly #tokens: string[];
  readonly #text: string;
  #at = 0;

  constructor(tokens: string[], text: string) {
    this.#tokens = tokens;
    this.#text = text;
  }

  expression(): Expr {
    let left = this.#operand();
    while (OPERATORS.includes(this.#peek())) {
      const op = this.#next();
      this.#labelListAfter('on', 'ignoring');
      this.#labelListAfter('group_left', 'group_right');
      left = { kind: 'binary', op, left, right: this.#operand() };
    }
    return left;
  }

  end(): void {
    if (this.#at < this.#tokens.length) throw this.#unexpected('the end');
  }

  #operand(): Expr {
    const token = this.#next();
    if (token === '(') {
      const inner = this.expression();
      this.#expect(')');
      return inner;
    }
    if (/^[\d"]/.test(token)) return { kind: 'literal', text: token };
    if (token === 'time') {
      this.#expect('(');
      this.#expect(')');
      return { kind: 'literal', text: token };
    }
    if (AGGREGATIONS.includes(token)) return this.#aggregation();
    if (this.#peek() === '(') return this.#call(token);
    if (!/^[a-zA-Z_:]/.test(token)) throw this.#unexpected('an operand', token);
    return this.#selector(token);
  }

  /** `by` is allowed only before the parentheses. */
  #aggregation(): Expr {
    const by = this.#labelListAfter('by');
    const args = this.#args();
    const [arg] = args;
    if (args.length !== 1 || arg === undefined) throw this.#unexpected('one argument');
    return { kind: 'aggregate', by, arg };
  }

  #call(name: string): Expr {
    if (!FUNCTIONS.includes(name)) throw new Error(`unknown function: ${name}`);
    return { kind: 'call', name, args: this.#args() };
  }

  #args(): Expr[] {
    this.#expect('(');
    const args: Expr[] = [];
    if (this.#peek() !== ')') args.push(this.expression());
    while (this.#peek() === ',') {
      this.#next();
      args.push(this.expression());
    }
    this.#expect(')');
    return args;
  }

  #selector(name: string): Expr {
    const matchers: Matcher[] = [];
    if (this.#peek() === '{') {
      this.#next();
      while (this.#peek() !== '}') {
        matchers.push(this.#matcher());
        if (this.#peek() !== '}') this.#expect(',');
      }
      this.#expect('}');
    }
    if (this.#peek().startsWith('[')) this.#next();
    if (this.#peek() === 'offset') {
      this.#next();
      const by = this.#next();
      if (!/^\d+[smhd]$/.test(by)) throw this.#unexpected('a duration', by);
    }
    return { kind: 'selector', name, matchers };
  }

  #matcher(): Matcher {
    const [label, op, value] = [this.#next(), this.#next(), this.#next()];
    if (!/^[a-zA-Z_]\w*$/.test(label)) throw this.#unexpected('a label', label);
    if (!['=', '!=', '=~', '!~'].includes(op)) throw this.#unexpected('a comparison of a label', op);
    if (!value.startsWith('"')) throw this.#unexpected('a label value', value);
    return { label, op, value: value.slice(1, -1) };
  }

  #labelListAfter(...words: string[]): string[] {
    const labels: string[] = [];
    if (!words.includes(this.#peek())) return labels;
    this.#next();
    this.#expect('(');
    while (this.#peek() !== ')') {
      const label = this.#next();
      if (!/^[a-zA-Z_]\w*$/.test(label)) throw this.#unexpected('a label', label);
      labels.push(label);
      if (this.#peek() !== ')') this.#expect(',');
    }
    this.#expect(')');
    return labels;
  }

  #peek(): string {
    return this.#tokens[this.#at] ?? '';
  }

  #next(): string {
    return this.#tokens[this.#at++] ?? '';
  }

  #expect(token: string): void {
    const found = this.#next();
    if (found !== token) throw this.#unexpected(token, found);
  }

  #unexpected(wanted: string, found = this.#peek()): Error {
    return new Error(`expected ${wanted} and found ${found || 'the end'} in: ${this.#text}`);
  }
}

/** The labels of a metric, each with its values if they are known; undefined: there is no such metric. */
export type Exported = (name: string) => ReadonlyMap<string, ReadonlySet<string> | undefined> | undefined;

export interface Reading {
  /** Labels of the result. */
  labels: Set<string>;
  /** Names of all metrics in it. */
  metrics: string[];
  /** What the expression uses and does not exist. */
  problems: string[];
}

/** Compares what an expression uses with what is exported. */
export function readPromql(text: string, exported: Exported): Reading {
  const metrics: string[] = [];
  const problems: string[] = [];
  const labels = labelsOf(parsePromql(text));
  return { labels, metrics, problems };

  function labelsOf(expr: Expr): Set<string> {
    switch (expr.kind) {
      case 'literal':
        return new Set();
      case 'selector':
        return ofSelector(expr.name, expr.matchers);
      case 'aggregate': {
        const within = labelsOf(expr.arg);
        for (const label of expr.by)
          if (!within.has(label)) problems.push(`by (${label}): no such label within`);
        return new Set(expr.by);
      }
      case 'call':
        return ofCall(expr.name, expr.args.map(labelsOf), expr.args);
      case 'binary': {
        const [left, right] = [labelsOf(expr.left), labelsOf(expr.right)];
        // A number or time() on the left: the result has the labels of the right side.
        if (expr.left.kind === 'literal' || (expr.left.kind === 'call' && expr.left.name === 'time'))
          return right;
        return expr.op === 'or' ? new Set([...left].filter((label) => right.has(label))) : left;
      }
    }
  }

  function ofCall(name: string, labels: Set<string>[], args: Expr[]): Set<string> {
    const [first = new Set<string>(), second = new Set<string>()] = labels;
    if (name === 'histogram_quantile') {
      if (!second.has('le')) problems.push('histogram_quantile: without le');
      return new Set([...second].filter((label) => label !== 'le'));
    }
    if (name === 'label_replace') {
      const [, label] = args;
      return label?.kind === 'literal' ? first.add(label.text.slice(1, -1)) : first;
    }
    if (name !== 'absent') return first;
    const [selector] = args;
    const matchers = selector?.kind === 'selector' ? selector.matchers : [];
    return new Set(matchers.filter(({ op }) => op === '=').map(({ label }) => label));
  }

  function ofSelector(name: string, matchers: Matcher[]): Set<string> {
    metrics.push(name);
    const has = exported(name);
    if (!has) problems.push(`${name}: is not exported`);
    else for (const matcher of matchers) checkMatcher(name, matcher, has);
    return new Set(has?.keys());
  }

  function checkMatcher(
    name: string,
    { label, op, value }: Matcher,
    has: NonNullable<ReturnType<Exported>>,
  ): void {
    const values = has.get(label);
    if (!has.has(label)) problems.push(`${name}: has no label ${label}`);
    if (!values || value.startsWith('$')) return;
    const alternatives = op.includes('~') ? value.split('|') : [value];
    for (const one of alternatives) if (!values.has(one)) problems.push(`${name}: ${label} is never ${one}`);
  }
}
