/** What a heading stands in front of, up to the next heading. */
interface Section {
  level: number;
  title: string;
  paragraphs: readonly string[];
}

const NOTE = '<!-- Written by npm run api. Change the docstrings in src instead. -->';

/**
 * Makes TypeDoc's Markdown readable: without what only repeats a signature, with a list of all names, with anchors as GitHub
 * counts them, and with links to our documents.
 *
 * @param markdown a page that begins with its title
 * @throws {Error} if a link leads to a name that the page does not describe
 */
export function readable(markdown: string): string {
  const sections = joined(sectionsOf(markdown).flatMap(shortened));
  const [title, ...rest] = sections.map(({ level, title, paragraphs }) =>
    [`${'#'.repeat(level)} ${title}`, ...paragraphs].join('\n\n'),
  );
  return `${NOTE}\n\n${linked([title, ...namesIn(sections), ...rest].join('\n\n'))}\n\n`;
}

function sectionsOf(markdown: string): Section[] {
  // Headings separate enough, without rules.
  const paragraphs = markdown
    .trim()
    .split(/\n{2,}/)
    .filter((paragraph) => paragraph !== '***');
  const starts = paragraphs.flatMap((paragraph, at) => (/^#+ /.test(paragraph) ? [at] : []));
  return starts.map((start, at) => {
    const [heading = '', ...within] = paragraphs.slice(start, starts[at + 1]);
    const [, marks = '', title = ''] = heading.match(/^(#+) (.*)$/) ?? [];
    return { level: marks.length, title, paragraphs: within };
  });
}

/** The section without what the signature says already: nothing is left of some. */
function shortened({ level, title, paragraphs }: Section): Section[] {
  if (title === 'Extended by') return [];
  const kept = paragraphs.map(withoutMarks).filter((paragraph) => !isRedundant(title, paragraph));
  const isEmpty = kept.length === 0 && (title === 'Returns' || title === 'Parameters');
  return isEmpty ? [] : [{ level, title, paragraphs: kept }];
}

/** TypeDoc writes a section for each error that a function throws. */
function joined(sections: readonly Section[]): Section[] {
  const result: Section[] = [];
  for (const section of sections) {
    const last = result.at(-1);
    if (section.title === 'Throws' && last?.title === 'Throws')
      result[result.length - 1] = { ...last, paragraphs: [...last.paragraphs, ...section.paragraphs] };
    else result.push(section);
  }
  return result;
}

function isRedundant(title: string, paragraph: string): boolean {
  if (title === 'Parameters') return paragraph.startsWith('| Parameter | Type |\n');
  // Our sentences on what is returned begin with a word, and types with a mark.
  return title === 'Returns' && /^(?:\W|readonly )/.test(paragraph);
}

/** Without anchors in tables, which nothing leads to, and without a type parameter that only some versions of Node's types have. */
const withoutMarks = (paragraph: string): string =>
  paragraph.replace(/<a id="[^"]*"><\/a> /g, '').replaceAll('`Buffer`\\<`ArrayBufferLike`\\>', '`Buffer`');

/** One line for each group, with the names in it. */
function namesIn(sections: readonly Section[]): string[] {
  const groups: { title: string; names: string[] }[] = [];
  for (const { level, title } of sections) {
    if (level === 2) groups.push({ title, names: [] });
    if (level === 3) groups.at(-1)?.names.push(`[${nameIn(title)}](#)`);
  }
  return groups.map(({ title, names }) => `${title}: ${names.join(', ')}`);
}

/** Headings of functions end in brackets. */
const nameIn = (heading: string): string => heading.replace(/\(\)$/, '');

/** Sets the targets of all links: names of the page, and paths of our documents. */
function linked(text: string): string {
  const anchors = new Map<string, string>();
  const seen = new Map<string, number>();
  for (const [, marks = '', heading = ''] of text.matchAll(/^(#+) (.+)$/gm)) {
    const slug = heading
      .toLowerCase()
      .replace(/[^\w -]/g, '')
      .replaceAll(' ', '-');
    const times = seen.get(slug) ?? 0;
    seen.set(slug, times + 1);
    if (marks.length === 3) anchors.set(nameIn(heading), times === 0 ? slug : `${slug}-${times}`);
  }
  return text
    .replace(/\[(`?)(\w+)\1\]\(#[\w-]*\)/g, (_, quote: string, name: string) => {
      const anchor = anchors.get(name);
      if (anchor === undefined) throw new Error(`the reference has a link to ${name}, and no section on it`);
      return `[${quote}${name}${quote}](#${anchor})`;
    })
    .replace(/\bdocs\/([\w-]+\.md)/g, '[docs/$1](../$1)');
}
