import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Page,
} from 'playwright-core';
import { afterAll } from 'vitest';

const browsers: Browser[] = [];
afterAll(() => Promise.all(browsers.map((browser) => browser.close())));

/** A real Chromium without a window, in a profile of its own. Closed after the test file, whatever happens. */
export async function openBrowser(): Promise<Browser> {
  const executablePath = ['/usr/bin/chromium', '/usr/bin/chromium-browser'].find((path) => existsSync(path));
  const quiet = ['quic', 'background-networking', 'component-update', 'sync', 'gpu'].map(
    (name) => `--disable-${name}`,
  );
  const browser = await chromium.launch({
    ...(executablePath ? { executablePath } : { channel: 'chromium' }),
    // Chromium's sandbox refuses to run as root.
    chromiumSandbox: process.getuid?.() !== 0,
    args: [...quiet, '--no-first-run'],
  });
  browsers.push(browser);
  return browser;
}

/** A page, and everything that went wrong in it. */
export interface WatchedPage {
  page: Page;
  context: BrowserContext;
  /** Errors in the console, exceptions, violations of the Content-Security-Policy, requests to other origins. */
  troubles: string[];
  /** `METHOD path status` of each response with a status of 400 or more, once each. */
  refusals: Set<string>;
}

export async function openPage(
  browser: Browser,
  origin: string,
  options: BrowserContextOptions = {},
): Promise<WatchedPage> {
  const context = await browser.newContext({ viewport: { width: 1200, height: 850 }, ...options });
  const page = await context.newPage();
  const troubles: string[] = [];
  const refusals = new Set<string>();
  await page.addInitScript(`document.addEventListener('securitypolicyviolation', (event) =>
    console.error('CSP ' + event.violatedDirective + ' ' + event.blockedURI))`);
  page.on('console', (message) => {
    // Chromium reports each refused request in the console as well.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource'))
      troubles.push(message.text());
  });
  page.on('pageerror', (error) => troubles.push(String(error)));
  page.on('request', (request) => {
    if (!request.url().startsWith(`${origin}/`) && !request.url().startsWith('data:'))
      troubles.push(`a request to ${request.url()}`);
  });
  page.on('response', (response) => {
    const { pathname } = new URL(response.url(), origin);
    if (response.status() >= 400)
      refusals.add(`${response.request().method()} ${pathname} ${response.status()}`);
  });
  return { page, context, troubles, refusals };
}

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface AxeResult {
  violations: { id: string; help: string; nodes: { html: string }[] }[];
}

/** What axe-core finds in the page as it is now: rule, help, and the elements. Default: all of its rules. */
export async function accessibilityMistakes(page: Page, rules?: readonly string[]): Promise<string[]> {
  await page.evaluate(axe);
  const options = JSON.stringify({ resultTypes: ['violations'], ...(rules ? { runOnly: rules } : {}) });
  const { violations } = await page.evaluate<AxeResult>(`axe.run(${options})`);
  return violations.map(
    ({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(' ')}`,
  );
}

/** Presses Tab until the element that has the focus matches. @throws if it is not among the next ones */
export async function tabTo(page: Page, selector: string): Promise<void> {
  for (let presses = 0; presses < 60; presses++) {
    await page.keyboard.press('Tab');
    if (await hasFocus(page, selector)) return;
  }
  throw new Error(`no Tab reaches ${selector}`);
}

export const hasFocus = (page: Page, selector: string): Promise<boolean> =>
  page.evaluate<boolean>(`document.activeElement?.matches(${JSON.stringify(selector)}) ?? false`);
