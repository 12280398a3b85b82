import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { bundlePages } from '../../../scripts/pages.ts';
import { accessibilityMistakes, openBrowser, openPage, type WatchedPage } from '../../support/browser.ts';
import { ADMIN_TOKEN, consoleOptions } from '../../support/console.ts';
import { openStack, type Stack } from '../../support/stack.ts';

interface Content {
  examples: Record<string, { value: unknown }>;
}

interface Response {
  description: string;
  headers?: Record<string, object>;
  content?: Record<string, Content>;
}

interface Operation {
  operationId: string;
  summary: string;
  parameters: { $ref: string }[];
  requestBody?: { content: Record<string, Content> };
  responses: Record<string, Response>;
}

const TEXT = readFileSync(new URL('../../../config/openapi.yaml', import.meta.url), 'utf8');

const document: {
  info: { title: string };
  servers: { url: string }[];
  paths: Record<string, Record<string, Operation>>;
  components: { parameters: Record<string, { name: string }>; schemas: object };
} = parse(TEXT);

const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
);

/** A part of the page: its text in one line, the media type that is chosen, and the text of each example. */
interface Shown {
  text: string;
  mediaType: string | null;
  examples: Record<string, string>;
}

interface ShownOperation {
  summary: string;
  parameters: string;
  body: Shown | null;
  /** By status. */
  responses: Record<string, Shown>;
}

/** Reads every operation as it is shown, and chooses each example. In one script, because there are a hundred of them. */
const READ = `(() => {
  const textOf = (part) => part.innerText.replace(/\\s+/g, ' ').trim();
  const setValue = Object.getOwnPropertyDescriptor(HTMLSelectElement.prototype, 'value').set;
  const shown = (part) => ({
    part,
    text: textOf(part),
    mediaType: part.querySelector('select:not([aria-label=Example])')?.value ?? null,
  });
  const withExamples = ({ part, ...read }) => {
    const select = part.querySelector('select[aria-label=Example]');
    const examples = [...(select?.options ?? [])].map(({ value }) => {
      if (select.value !== value) {
        setValue.call(select, value);
        select.dispatchEvent(new Event('change', { bubbles: true }));
      }
      return [value, part.querySelector('pre').textContent];
    });
    return { ...read, examples: Object.fromEntries(examples) };
  };
  // All texts first: after each change, the whole page would have to be laid out again.
  const blocks = [...document.querySelectorAll('.opblock')].map((block) => {
    const body = block.querySelector('.opblock-section-request-body');
    return {
      summary: textOf(block.querySelector('.opblock-summary')),
      parameters: textOf(block.querySelector('.parameters-container')),
      body: body && shown(body),
      rows: [...block.querySelectorAll('tr.response')].map((row) => [row.dataset.code, shown(row)]),
    };
  });
  return blocks.map(({ summary, parameters, body, rows }) => ({
    summary,
    parameters,
    body: body && withExamples(body),
    responses: Object.fromEntries(rows.map(([status, read]) => [status, withExamples(read)])),
  }));
})()`;

/** As it is shown: without the marks of Markdown. */
const plain = (markdown: string): string => markdown.replaceAll(/`|^- /gm, '').replaceAll(/\s+/g, ' ').trim();

describe('the page of the merchants’ interface in Chromium', () => {
  let stack: Stack;
  let shown: WatchedPage;

  beforeAll(async () => {
    await bundlePages();
    stack = await openStack({ admin: consoleOptions });
    shown = await openPage(await openBrowser(), stack.adminUrl);
    // No other host can be reached. The page would say so among its troubles.
    await shown.context.route('**', (route) =>
      route.request().url().startsWith(stack.adminUrl) ? route.continue() : route.abort(),
    );
    await shown.page.goto(`${stack.adminUrl}/docs`);
    await shown.page.getByRole('heading', { name: document.info.title, level: 1 }).waitFor();
    await shown.page.getByRole('heading', { name: 'Schemas' }).waitFor();
  }, 60_000);
  afterAll(() => stack?.close());

  it('shows each operation with its parameters, and each answer with its headers and examples', async () => {
    const read = await shown.page.evaluate<ShownOperation[]>(READ);
    expect(operations.length).toBeGreaterThan(1);
    expect(read).toHaveLength(operations.length);
    for (const [i, { path, method, operation }] of operations.entries()) {
      const { summary, parameters, body, responses } = read[i] as ShownOperation;
      expect(summary).toContain(`${method.toUpperCase()} ${path} ${operation.summary}`);
      for (const { $ref } of operation.parameters)
        expect(parameters).toContain(document.components.parameters[$ref.split('/').at(-1) ?? '']?.name);
      if (operation.requestBody) expectExamples(body, operation.requestBody.content);
      expect(Object.keys(responses)).toEqual(Object.keys(operation.responses));
      for (const [status, { description, headers = {}, content }] of Object.entries(operation.responses)) {
        const answer = responses[status] as Shown;
        expect(answer.text, `${path} ${status}`).toContain(plain(description));
        for (const name of Object.keys(headers)) expect(answer.text, `${path} ${status}`).toContain(name);
        if (content) expectExamples(answer, content);
      }
    }
  });

  function expectExamples(part: Shown | null, content: Record<string, Content>): void {
    expect(Object.keys(content)).toEqual([part?.mediaType]);
    for (const { examples } of Object.values(content)) {
      const values = Object.entries(examples).map(([name, { value }]) => [name, value]);
      const read = Object.entries(part?.examples ?? {}).map(([name, text]) => [name, JSON.parse(text)]);
      expect(values).not.toEqual([]);
      expect(read).toEqual(values);
    }
  }

  it('shows every schema, the address and the kind of the secret key', async () => {
    const { page } = shown;
    const text = plain(await page.locator('body').innerText());
    for (const name of Object.keys(document.components.schemas)) expect(text).toContain(name);
    for (const part of [document.servers[0]?.url, 'Authorization: Bearer', 'Licence: MIT'])
      expect(text).toContain(part);
  });

  it('has nothing to send a request with, or to enter a secret key in', async () => {
    const { page } = shown;
    expect(await page.getByRole('button', { name: /try|execute|authorize/i }).count()).toBe(0);
    expect(await page.locator('input:visible, textarea:visible').count()).toBe(0);
  });

  it('has no mistake that axe-core finds', async () => {
    // axe-core reads style sheets by requests of its own, which the page may not send.
    const before = shown.troubles.length;
    expect(await accessibilityMistakes(shown.page)).toEqual([]);
    shown.troubles.splice(before);
  });

  it('leads to the document as a file', async () => {
    const { page } = shown;
    const [file] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('link', { name: 'openapi.yaml' }).click(),
    ]);
    expect([file.suggestedFilename(), readFileSync(await file.path(), 'utf8')]).toEqual([
      'openapi.yaml',
      TEXT,
    ]);
  });

  it('has no access to the console’s session, its API, or any storage', async () => {
    const { page } = shown;
    await page.request.post(`${stack.adminUrl}/console/session`, {
      data: { token: ADMIN_TOKEN },
      headers: { Origin: stack.adminUrl },
    });
    expect((await page.request.get(`${stack.adminUrl}/console/api/overview`)).status()).toBe(200);
    // Swagger UI can be told by the address to load another document.
    const other = encodeURIComponent('https://elsewhere.example/openapi.json');
    await page.goto(`${stack.adminUrl}/docs?url=${other}&configUrl=${other}#/default/balance`);
    await page.getByRole('heading', { name: 'Schemas' }).waitFor();
    const before = shown.troubles.length;
    const tried = await page.evaluate<string[]>(`Promise.all([
      () => origin,
      () => document.cookie,
      () => localStorage.length,
      () => sessionStorage.length,
      () => fetch('/console/api/overview').then(({ status }) => status),
      () => fetch('/metrics', { mode: 'no-cors' }).then(({ type }) => type),
      () => open('/console/'),
    ].map(async (attempt) => { try { return String(await attempt()); } catch (error) { return error.name; } }))`);
    expect(tried).toEqual([
      ...['null', 'SecurityError', 'SecurityError', 'SecurityError', 'TypeError', 'TypeError', 'null'],
    ]);
    shown.troubles.splice(before);
  });

  it('had no error in the console, no violation of the policy, and no request to another host', () => {
    expect(shown.troubles).toEqual([]);
    expect([...shown.refusals]).toEqual([]);
  });
});
