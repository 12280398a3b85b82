import { randomUUID } from 'node:crypto';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { describe, expect, it } from 'vitest';
import { bundlePages } from '../../../scripts/pages.ts';
import { send, withdraw } from '../../support/client.ts';
import { temporaryFolder, testConfig } from '../../support/config.ts';
import { ADMIN_TOKEN, consoleOptions, SUPPORT_TOKEN } from '../../support/console.ts';
import { spawnGateway } from '../../support/spawn.ts';
import { openSandbox } from '../../support/stack.ts';
import { startTour } from '../../support/tour.ts';
import { until } from '../../support/until.ts';
import {
  accessibilityMistakes,
  hasFocus,
  openBrowser,
  openPage,
  tabTo,
  type WatchedPage,
} from './browser.ts';

/** An expression of the page. */
const STORED_SECRET = `sessionStorage.getItem('oncegate_console')`;

/** The tables of a narrow screen that are wider than it, those of the charts aside, which have a row for each sample. */
const CUT = `[...document.querySelectorAll('main table')]
  .filter((table) => table.checkVisibility() && table.getBoundingClientRect().right > innerWidth)
  .map((table) => table.outerHTML.slice(0, 200))`;

/** Keeps what each chart has written since it was cleared, by the chart's name, in `written`. */
const KEEP_WRITTEN = `window.written = {};
const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.clearRect = function (...rectangle) {
  written[this.canvas.ariaLabel] = [];
  clearRect.apply(this, rectangle);
};
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  written[this.canvas.ariaLabel]?.push(text);
  fillText.call(this, text, ...place);
};`;

/** Requests to resolve a key. */
const RESOLVE = '**/records/*/resolve';

/** `SCREENSHOTS=docs/console npx vitest run test/e2e/console/browser.test.ts` makes the documents' pictures again. */
const PICTURES = process.env.SCREENSHOTS;

await bundlePages();
const sandbox = await openSandbox();
const config = testConfig(temporaryFolder(), sandbox.url, {
  admin: consoleOptions,
  idempotency: { countDoubtsEveryMs: 1000 },
});
const [gateway, browser] = await Promise.all([spawnGateway(config), openBrowser()]);
const admin = await openPage(browser, gateway.adminUrl, { colorScheme: 'light' });

describe('the console in Chromium', () => {
  async function logIn({ page }: WatchedPage, token: string): Promise<void> {
    await page.goto(`${gateway.adminUrl}/console/`);
    await page.fill('#token', token);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Overview', level: 1 }).waitFor();
  }

  /** Makes the page ask for the overview now, and not in five seconds. */
  const askNow = () => admin.page.evaluate(`document.dispatchEvent(new Event('visibilitychange'))`);

  /** A key in doubt. The backend has paid only if it executes. */
  async function leaveInDoubt({ executes }: { executes: boolean }): Promise<string> {
    const key = `order-${randomUUID().slice(0, 13)}`;
    const fault = executes ? 'execute-then-reset' : 'reset-before-execute';
    expect((await withdraw(gateway.url, { key, fault })).status).toBe(502);
    return key;
  }

  /** Opens the dialogue of a key in the list of keys in doubt. */
  async function openDialog({ page }: WatchedPage, key: string): Promise<void> {
    await page.getByRole('link', { name: /^In doubt/ }).click();
    await page.getByRole('button', { name: 'Read it again' }).click();
    await page.getByRole('button', { name: `Resolve ${key}` }).click();
    await page.getByRole('dialog', { name: 'Resolve a key in doubt' }).waitFor();
  }

  /** Fills the open dialogue, and sends it. */
  async function release({ page }: WatchedPage): Promise<void> {
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('It did not execute the request').check();
    await dialog.getByLabel(/^Type/).fill('not executed');
    await dialog.getByLabel('Reason').fill('The books show nothing');
    await page.keyboard.press('Enter');
  }

  it('tells nothing to a visitor without a token, or with a wrong one', async () => {
    const { page } = admin;
    await page.goto(`${gateway.adminUrl}/console/#/doubts`);
    await page.getByRole('heading', { name: 'Log in' }).waitFor();
    await page.fill('#token', 'not the admin token');
    await page.keyboard.press('Enter');
    await page.getByRole('alert').filter({ hasText: 'No token of this gateway is like this one.' }).waitFor();
    // Ready to type again.
    expect(await hasFocus(page, '#token')).toBe(true);
    expect(await accessibilityMistakes(page)).toEqual([]);
  });

  it('logs in by keyboard, and goes where the address says', async () => {
    const { page } = admin;
    await page.fill('#token', ADMIN_TOKEN);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'In doubt', level: 1 }).waitFor();
    expect(await hasFocus(page, 'h1')).toBe(true);
    await page.getByText('No key is in doubt.', { exact: true }).waitFor();
    expect(await page.title()).toBe('In doubt · oncegate console');
    // The cookie is not for scripts.
    expect(await page.evaluate('document.cookie')).toBe('');
    const cookies = (await admin.context.cookies()).map(({ path, ...rest }) => [
      path,
      rest.httpOnly,
      rest.sameSite,
    ]);
    expect(cookies.toSorted()).toEqual([
      ['/console', true, 'Strict'],
      ['/records', true, 'Strict'],
    ]);
  });

  it('shows payouts in the chart, under the pointer and in its table', async () => {
    const { page } = admin;
    await tabTo(page, 'nav a[href="#/overview"]');
    await page.keyboard.press('Enter');
    const name = 'Answered by the backend, per second';
    const chart = page.getByRole('region', { name });
    await chart.getByRole('img', { name: `Chart: ${name}` }).waitFor();
    await Promise.all(Array.from({ length: 6 }, () => withdraw(gateway.url, { key: randomUUID() })));
    await chart.getByText('Values as a table').click();
    const table = chart.getByRole('table', { name: `${name}, newest first` });
    expect(await table.getByRole('columnheader').allTextContents()).toEqual([
      ...['Time', 'Executed', 'Replayed', 'Passed on'],
    ]);
    const executed = table.locator('tbody td:nth-of-type(1)');
    await until(async () => {
      await askNow();
      return (await executed.allTextContents()).some((text) => /[1-9]/.test(text));
    });
    await until(async () => (await drawnAboveZero(admin)) > 0);
    await chart.locator('.u-over').hover();
    await chart.getByRole('row', { name: /^Time : \d\d:\d\d:\d\d$/ }).waitFor();
    const checks = page.getByRole('region', { name: 'Checks, as on /readyz' });
    expect(await checks.textContent()).toMatch(
      /store✓ Passes: sqlite.*upstream✓ Passes: reachable.*keys✓ Passes/,
    );
    await page
      .getByText(/^Merchants get results: 6 of 6 requests that needed the backend got a result in the last/)
      .waitFor();
  });

  it('looks a key up by merchant and key, and by its recordId', async () => {
    const { page } = admin;
    const key = `order-${randomUUID()}`;
    const { headers } = await withdraw(gateway.url, { key });
    await page.getByRole('link', { name: 'Look up' }).click();
    await page.getByLabel('Merchant code').fill('M-BRAVO');
    await page.getByLabel('Idempotency key').fill(key);
    await page.keyboard.press('Enter');
    await page.getByRole('alert').filter({ hasText: 'no record of this key' }).waitFor();
    await page.getByLabel('Merchant code').fill('M-ALPHA');
    await page.keyboard.press('Enter');
    const record = page.getByRole('region', { name: `Key ${key}` });
    await record.waitFor();
    await until(() => hasFocus(page, 'h2#record'));
    const text = String(await record.textContent());
    for (const part of ['Completed', 'withdraw', 'M-ALPHA', String(headers['x-request-id']), 'Status201'])
      expect(text).toContain(part);
    expect(text).toMatch(/Fingerprint[0-9a-f]{64}/);
    expect(await record.getByRole('listitem').allTextContents()).toEqual([
      expect.stringContaining('started by request'),
      expect.stringContaining('completed'),
    ]);
    expect(text).toContain('Your token does not permit to see the body.');
    const recordId = /#\/lookup\/([0-9a-f]{48})$/.exec(page.url())?.[1] ?? '';
    await page.getByRole('link', { name: 'Overview' }).click();
    await page.getByRole('link', { name: 'Look up' }).click();
    await page.getByLabel('Record id or request id').fill(recordId);
    await page.keyboard.press('Enter');
    await record.waitFor();
  });

  it('leaves the focus to a person who begins to type as soon as a view is there', async () => {
    const { page } = admin;
    await page.getByRole('link', { name: 'Overview' }).click();
    await page.getByRole('heading', { name: 'Overview', level: 1 }).waitFor();
    const focused = await page.evaluate<string>(`new Promise((resolve) => {
      new MutationObserver((_, observer) => {
        const field = document.getElementById('find-key');
        if (!field) return;
        observer.disconnect();
        field.focus();
        // Everything that waits for the first frame of the view has happened then.
        requestAnimationFrame(() => setTimeout(() => resolve(document.activeElement.id)));
      }).observe(document.body, { childList: true, subtree: true });
      document.querySelector('nav a[href="#/lookup"]').click();
    })`);
    expect(focused).toBe('find-key');
  });

  it('completes a key in doubt by keyboard; the merchant’s retry is replayed, and one payout was made', async () => {
    const { page } = admin;
    const key = await leaveInDoubt({ executes: true });
    await tabTo(page, 'nav a[href="#/doubts"]');
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: `Resolve ${key}` }).waitFor();
    await tabTo(page, `button[aria-label="Resolve ${key}"]`);
    await page.keyboard.press('Enter');
    await until(() => hasFocus(page, 'dialog h2'));
    await tabTo(page, 'dialog [name=as]');
    await page.keyboard.press('Space');
    await tabTo(page, '#resolve-status');
    await page.keyboard.type('201');
    await tabTo(page, '#resolve-body');
    await page.keyboard.type('{"success":true,"data":{"id":"from the books"}}');
    await tabTo(page, 'dialog button[type=submit]');
    await page.keyboard.press('Enter');
    // Without a reason nothing is sent, and the field says why.
    await until(() => hasFocus(page, '#resolve-reason[aria-invalid=true]'));
    await page.keyboard.type('The books show payment 17');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog', { name: 'The key is resolved' }).waitFor();
    await until(() => hasFocus(page, 'dialog h2'));
    expect(await page.getByRole('dialog').textContent()).toContain('with status 201');
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await until(() => hasFocus(page, 'h1'));
    const retry = await withdraw(gateway.url, { key });
    expect([retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 'true']);
    expect(retry.json()).toEqual({ success: true, data: { id: 'from the books' } });
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('releases a key only after the confirmation was typed; the retry is then executed once', async () => {
    const { page } = admin;
    const key = await leaveInDoubt({ executes: false });
    await openDialog(admin, key);
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('It did not execute the request').check();
    expect(await dialog.textContent()).toContain('it pays a second time');
    await dialog.getByLabel('Reason').fill('The books show nothing');
    await dialog.getByLabel(/^Your name/).fill('Ada');
    await dialog.getByRole('button', { name: 'Release the key' }).click();
    await dialog.getByText('Type the words “not executed”.').waitFor();
    expect((await withdraw(gateway.url, { key })).status).toBe(409);
    expect(await accessibilityMistakes(page)).toEqual([]);
    await dialog.getByLabel(/^Type/).fill('not executed');
    await page.keyboard.press('Enter');
    await dialog.getByText('The key was released.').waitFor();
    await dialog.getByRole('link', { name: 'Show the record' }).click();
    const audit = page.getByRole('listitem').filter({ hasText: 'resolved as released' });
    expect(await audit.textContent()).toMatch(/by Ada \(admin\)\. Reason: The books show nothing$/);
    expect((await withdraw(gateway.url, { key })).status).toBe(201);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('shows every space of a key: another payout may have one less', async () => {
    const { page } = admin;
    const key = `order  ${randomUUID().slice(0, 13)}`;
    expect((await withdraw(gateway.url, { key, fault: 'reset-before-execute' })).status).toBe(502);
    await openDialog(admin, key);
    // As it is on the screen.
    expect(await page.getByRole('dialog').locator('code').first().innerText()).toBe(key);
    expect(await page.locator('table a.mono').allInnerTexts()).toContain(key);
    await release(admin);
    await page.getByText('The key was released.').waitFor();
    await page.getByRole('button', { name: 'Close' }).click();
  });

  it('explains that a key was resolved by somebody else meanwhile, and writes nothing', async () => {
    const { page } = admin;
    const key = await leaveInDoubt({ executes: true });
    await openDialog(admin, key);
    const authorization = { Authorization: `Bearer ${ADMIN_TOKEN}`, 'Content-Type': 'application/json' };
    const list = await send(gateway.adminUrl, { path: '/records?in_doubt=true', headers: authorization });
    const { records } = list.json<{ records: { recordId: string; key: string; execution: string }[] }>();
    const { recordId, execution } = records.find((record) => record.key === key) ?? {};
    const other = { execution, as: 'completed', by: 'somebody else', reason: 'the books', status: 202 };
    const path = `/records/${recordId}/resolve`;
    const body = JSON.stringify(other);
    expect(
      (await send(gateway.adminUrl, { method: 'POST', path, headers: authorization, body })).status,
    ).toBe(200);
    await release(admin);
    const alert = page.getByRole('dialog').getByRole('alert');
    await alert.filter({ hasText: 'was not written' }).waitFor();
    expect(await alert.textContent()).toContain('It is now: Completed.');
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: `Resolve ${key}` }).waitFor({ state: 'detached' });
    expect((await withdraw(gateway.url, { key })).status).toBe(202);
    expect(sandbox.ledger.payouts({ key })).toBe(1);
  });

  it('says that a key was released, although its record is that of the merchant’s next request already', async () => {
    const { page } = admin;
    const key = await leaveInDoubt({ executes: false });
    // The merchant's retry is executed before the page reads the record again.
    await page.route(RESOLVE, async (route) => {
      const response = await route.fetch();
      await withdraw(gateway.url, { key });
      await route.fulfill({ response });
    });
    await openDialog(admin, key);
    await release(admin);
    const text = 'The key was released. The merchant has sent a request with it since';
    await page.getByRole('dialog').getByText(text).waitFor();
    await page.keyboard.press('Escape');
    await page.unroute(RESOLVE);
  });

  it('does not say that nothing was written if an earlier try had no answer', async () => {
    const { page } = admin;
    const dialog = page.getByRole('dialog');
    const key = await leaveInDoubt({ executes: true });
    await openDialog(admin, key);
    await page.route(RESOLVE, async (route) => {
      await route.fetch();
      await route.abort('connectionrefused');
    });
    await dialog.getByLabel('It executed the request').check();
    await dialog.getByLabel('Reason').fill('The books show payment 19');
    await page.keyboard.press('Enter');
    await dialog.getByText('Your resolution may have been written').waitFor();
    await page.unroute(RESOLVE);
    await dialog.getByRole('button', { name: 'Complete the key' }).click();
    await dialog.getByText('This try was not written').waitFor();
    await dialog.getByText('Your earlier try, which had no answer, may have been written.').waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: `Resolve ${key}` }).waitFor({ state: 'detached' });
  });

  it('shows bodies as text to tokens that may see them, and gives no button to those that may not resolve', async () => {
    const hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>';
    const key = await leaveInDoubt({ executes: true });
    await openDialog(admin, key);
    const dialog = admin.page.getByRole('dialog');
    await dialog.getByLabel('It executed the request').check();
    await dialog.getByLabel('Status').fill('200');
    await dialog.getByLabel('Content type').fill('text/html');
    await dialog.getByLabel('Body').fill(hostile);
    await dialog.getByLabel('Reason').fill(hostile);
    await dialog.getByRole('button', { name: 'Complete the key' }).click();
    await dialog.getByRole('link', { name: 'Show the record' }).click();
    await admin.page.getByText(`Reason: ${hostile}`).waitFor();
    const place = new URL(admin.page.url()).hash;

    const open = await leaveInDoubt({ executes: true });
    const support = await openPage(browser, gateway.adminUrl);
    const { page } = support;
    await logIn(support, SUPPORT_TOKEN);
    await page.goto(`${gateway.adminUrl}/console/${place}`);
    await page.getByRole('button', { name: 'Show the stored body' }).click();
    await page.locator('pre').filter({ hasText: hostile }).waitFor();
    expect(await page.locator('main img, main script').count()).toBe(0);
    await page.getByRole('link', { name: /^In doubt/ }).click();
    await page.getByRole('link', { name: open }).waitFor();
    expect(await page.getByRole('button', { name: /^Resolve/ }).count()).toBe(0);
    await page.getByText('Your token does not permit to resolve keys.').waitFor();
    expect([support.troubles, [...support.refusals]]).toEqual([[], ['GET /console/session 401']]);
    await support.context.close();
  });

  it('filters and sorts keys in doubt over all pages, keeps that in the address, and saves all that match', async () => {
    const { page } = admin;
    const alpha = await leaveInDoubt({ executes: false });
    const bravo = randomUUID();
    const secret = 'sk_sandbox_bravo';
    await withdraw(gateway.url, { key: bravo, secret, fault: 'reset-before-execute' });
    const keys = await Promise.all(Array.from({ length: 26 }, () => leaveInDoubt({ executes: false })));
    await page.getByRole('link', { name: /^In doubt/ }).click();
    await page.getByLabel('Order', { exact: true }).selectOption('Newest first');
    await page.getByRole('link', { name: 'Next page' }).click();
    await page.getByText('Page 2 of 2').waitFor();
    // The oldest are on the last page. The address leads there again.
    await page.getByRole('link', { name: alpha }).waitFor();
    expect(new URL(page.url()).hash).toBe('#/doubts?sort=newest&page=2');
    await page.reload();
    await page.getByRole('link', { name: alpha }).waitFor();
    expect(await page.getByLabel('Order', { exact: true }).inputValue()).toBe('newest');

    await page.getByLabel('Merchant code').fill('M-BRAVO');
    await page.keyboard.press('Enter');
    await page.getByRole('link', { name: alpha }).waitFor({ state: 'detached' });
    await page.getByRole('link', { name: bravo }).waitFor();
    await page.getByLabel('Merchant code').fill('m-');
    const later = randomUUID();
    await withdraw(gateway.url, { key: later, secret, fault: 'reset-before-execute' });
    await page.getByRole('button', { name: 'Read it again' }).click();
    await page.getByRole('link', { name: later }).waitFor();
    expect(await page.getByLabel('Merchant code').inputValue()).toBe('m-');
    await page.getByLabel('Merchant code').fill('m-bravo');
    await page.keyboard.press('Enter');
    await page.getByText('No key of m-bravo is in doubt that matches.').waitFor();
    await page.getByLabel('Merchant code').fill('');
    await page.keyboard.press('Enter');

    const [cause = ''] = await page
      .getByLabel('Cause', { exact: true })
      .getByRole('option')
      .nth(1)
      .allTextContents();
    const [, name, number] = /^(.*) \((\d+)\)$/.exec(cause) ?? [];
    await page.getByLabel('Cause', { exact: true }).selectOption({ label: cause });
    await page.getByText(`1 to 25 of ${number}`).waitFor();
    const saving = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save all that match' }).click();
    const saved = await saving;
    expect(saved.suggestedFilename()).toMatch(/^in-doubt-.*\.jsonl$/);
    const lines = readFileSync(await saved.path(), 'utf8')
      .trim()
      .split('\n');
    const records = lines.map((line) => JSON.parse(line));
    expect([records.length, new Set(records.map((record) => record.cause))]).toEqual([
      Number(number),
      new Set([name]),
    ]);
    expect(records.map((record) => record.key)).toEqual(expect.arrayContaining(keys));
    // The same lines as the command's, for the file of `records resolve-many`.
    expect(records[0]).toMatchObject({ execution: expect.any(String), recordId: expect.any(String) });

    await page.getByLabel('In doubt for').selectOption('24 hours or more');
    await page.getByText('No key in doubt matches.').waitFor();
    await page.getByRole('link', { name: /^In doubt/ }).click();
    await page.getByText('oncegate records resolve-many').waitFor();
    const count = /^The store’s count: \d\d, the oldest for .* \(counted at 20[\d-]+ [\d:]+\)/;
    await until(async () => {
      await askNow();
      return (await page.getByText(count).count()) === 1;
    });
  });

  it('finds a record by the first digits of its id, and by its request', async () => {
    const { page } = admin;
    const key = randomUUID();
    // Hexadecimal digits, as a record id has them.
    const { headers } = await withdraw(gateway.url, {
      key,
      headers: { 'X-Request-Id': key.replaceAll('-', '') },
    });
    const record = page.getByRole('region', { name: `Key ${key}` });
    await page.getByRole('link', { name: 'Look up' }).click();
    await page.getByLabel('Record id or request id').fill(String(headers['x-request-id']));
    await page.keyboard.press('Enter');
    await page.getByText('Search the completed ones too.').waitFor();
    await page.getByLabel('Search completed keys').check();
    await page.getByRole('button', { name: 'Look up the id' }).click();
    await record.waitFor();
    const recordId = /#\/lookup\/([0-9a-f]{48})$/.exec(page.url())?.[1] ?? '';
    await page.getByRole('link', { name: 'Overview' }).click();
    await page.getByRole('link', { name: 'Look up' }).click();
    await page.getByLabel('Record id or request id').fill(recordId.slice(0, 16));
    await page.keyboard.press('Enter');
    await record.waitFor();
  });

  it('is readable by axe-core’s rules in light and dark, and needs no sideways scrolling on a narrow screen', async () => {
    const { page } = admin;
    await leaveInDoubt({ executes: true });
    for (const name of ['Overview', 'In doubt', 'Look up']) {
      await page.getByRole('link', { name: new RegExp(`^${name}`) }).click();
      await page.getByRole('heading', { level: 1, name: new RegExp(`^${name}`) }).waitFor();
      await page.getByText('Loading …').waitFor({ state: 'detached' });
      const light = await background(page);
      await page.emulateMedia({ colorScheme: 'dark' });
      expect(await background(page)).not.toBe(light);
      // The other rules do not depend on colours.
      expect(await accessibilityMistakes(page, ['color-contrast']), `${name}, dark`).toEqual([]);
      await page.emulateMedia({ colorScheme: 'light' });
      expect(await accessibilityMistakes(page), name).toEqual([]);
      // 320 CSS pixels are also what 1280 pixels are at 400 % zoom.
      await page.setViewportSize({ width: 320, height: 640 });
      expect(await page.evaluate('document.documentElement.scrollWidth'), name).toBeLessThanOrEqual(320);
      await page.setViewportSize({ width: 390, height: 844 });
      expect(await page.evaluate(`document.querySelector('.banner').offsetHeight`)).toBeLessThan(110);
      // The charts follow the window's size in one of the next frames.
      await expect.poll(() => page.evaluate(CUT), { message: `${name}: a table is cut` }).toEqual([]);
      await page.setViewportSize({ width: 1200, height: 850 });
    }
  });

  it('says that the gateway does not answer, and goes on when it does', async () => {
    const { page, context } = admin;
    // Here the page asks for nothing but the overview.
    await page.getByRole('link', { name: 'Look up' }).click();
    await page.getByRole('heading', { name: 'Look up', level: 1 }).waitFor();
    await page.route('**/console/api/**', (route) => route.abort('connectionrefused'));
    await askNow();
    await page.getByText('The gateway does not answer since').waitFor();
    await page.unroute('**/console/api/**');
    const isTold = page.getByRole('log').getByText('The gateway answers again.').waitFor();
    await askNow();
    await page.getByText('The gateway does not answer since').waitFor({ state: 'detached' });
    await isTold;
    // A session that ended elsewhere, as it does when the gateway is restarted.
    await context.clearCookies();
    await askNow();
    await page.getByText('Your session has ended.').waitFor();
    await page.fill('#token', ADMIN_TOKEN);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Look up', level: 1 }).waitFor();
  });

  it('labels both axes of every chart on a phone, however few samples there are', async () => {
    const { page, context } = await openPage(browser, gateway.adminUrl, {
      viewport: { width: 390, height: 844 },
    });
    await page.addInitScript(KEEP_WRITTEN);
    let most = 0;
    await page.route('**/console/api/overview**', async (route) => {
      const response = await route.fetch();
      const overview = await response.json();
      // A new gateway: the time of a request is not known before there was one.
      const answerMs = most < 3 ? null : { half: 20, most: 40 };
      const kept: object[] = overview.samples.slice(overview.samples.length - most);
      const samples = kept.map((one) => ({ ...one, answerMs, backendMs: null, gatewayMs: null }));
      await route.fulfill({ response, json: { ...overview, samples } });
    });
    for (; most < 4; most++) {
      await page.goto('about:blank');
      await page.goto(`${gateway.adminUrl}/console/`);
      if (most === 0) {
        await page.fill('#token', ADMIN_TOKEN);
        await page.keyboard.press('Enter');
      }
      await page.getByRole('heading', { name: 'Checks, as on /readyz' }).waitFor();
      // Drawn after the samples were there.
      await page.evaluate(`new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))`);
      const charts = Object.entries(await page.evaluate<Record<string, string[]>>('written'));
      expect(charts).toHaveLength(4);
      for (const [chart, labels] of charts) {
        const times = labels.filter((label) => label.includes(':'));
        const agesS = times.map((label) => secondsOfDay() - secondsOfDay(label));
        const found = `${chart}, of ${most} samples: ${labels.join(', ')}`;
        expect([times.length > 1, labels.length - times.length > 1], found).toEqual([true, true]);
        // They are of the last minute, even after midnight.
        expect(
          agesS.filter((ageS) => (ageS + 86_400) % 86_400 > 90),
          found,
        ).toEqual([]);
      }
    }
    await context.close();
  });

  it('logs out, and forgets the secret of its session', async () => {
    const { page } = admin;
    await page.getByRole('button', { name: 'Log out' }).click();
    await page.getByText('You are logged out.').waitFor();
    expect(await page.evaluate(STORED_SECRET)).toBe(null);
  });

  it('is opened by the link that npm start prints, once', async () => {
    const tour = await startTour(['--data', temporaryFolder()]);
    const [link = ''] = /http\S+#\/login\/[\w-]+$/m.exec(tour.output()) ?? [];
    const opened = await openPage(browser, tour.urlOf('admin'));
    const later = await openPage(browser, tour.urlOf('admin'));
    await opened.page.goto(link);
    await opened.page.getByText('Logged in as sandbox').waitFor();
    // The code is not kept in the address.
    expect(new URL(opened.page.url()).hash).toBe('#/overview');
    await opened.page.reload();
    await opened.page.getByText('Nothing has been observed yet').waitFor();
    await later.page.goto(link);
    await later.page.getByText('This link does not log in any more').waitFor();
    for (const { context, troubles } of [opened, later]) {
      expect(troubles).toEqual([]);
      await context.close();
    }
    await tour.end('SIGTERM');
  });

  it('had no error in the console, no violation of the policy, and no request to another origin', () => {
    expect(admin.troubles.filter((text) => !text.includes('ERR_CONNECTION_REFUSED'))).toEqual([]);
    const asked = [...admin.refusals].map((refusal) => refusal.replace(/[0-9a-f]{32,48}/, 'RECORD_ID'));
    expect(new Set(asked)).toEqual(
      new Set([
        'GET /console/session 401',
        'POST /console/session 401',
        'POST /records/find 404',
        'POST /records/RECORD_ID/resolve 409',
        // A request id that has hexadecimal digits only.
        'GET /records/RECORD_ID 404',
        'GET /console/api/overview 401',
      ]),
    );
  });

  if (PICTURES)
    it('makes the pictures of the documents', { timeout: 120_000 }, async () => {
      mkdirSync(PICTURES, { recursive: true });
      await leaveInDoubt({ executes: true });
      const shown = await openPage(browser, gateway.adminUrl, { viewport: { width: 1200, height: 860 } });
      const { page } = shown;
      await logIn(shown, ADMIN_TOKEN);
      await someTraffic(gateway.url, 60_000);
      const picture = (name: string) => page.screenshot({ path: join(PICTURES, `${name}.png`) });
      for (const colorScheme of ['dark', 'light'] as const) {
        await page.emulateMedia({ colorScheme });
        await page.getByRole('heading', { level: 1 }).focus();
        await picture(`overview-${colorScheme}`);
      }
      await page.getByRole('link', { name: /^In doubt/ }).click();
      await page.getByRole('table').waitFor();
      await picture('in-doubt');
      await page.setViewportSize({ width: 390, height: 844 });
      await picture('in-doubt-narrow');
      await page.getByRole('link', { name: 'Overview' }).click();
      await page.getByRole('heading', { name: 'Requests of the last minute' }).waitFor();
      await picture('overview-narrow');
      await page.setViewportSize({ width: 1200, height: 860 });
      await page.getByRole('link', { name: /^In doubt/ }).click();
      await page
        .getByRole('button', { name: /^Resolve/ })
        .first()
        .click();
      await page.getByLabel('It did not execute the request').check();
      await picture('resolve');
      await page.keyboard.press('Escape');
      await page.getByRole('table').getByRole('link').first().click();
      await page.locator('h2#record').waitFor();
      await picture('look-up');
      await shown.context.close();
    });
});

const secondsOfDay = (clock = new Date().toTimeString().slice(0, 8)): number =>
  clock.split(':').reduce((sum, part) => 60 * sum + Number(part), 0);

const background = (page: Page) =>
  page.evaluate<string>('getComputedStyle(document.documentElement).backgroundColor');

/** How many pixels of the first chart have the colour of its first line, above the lowest third. */
async function drawnAboveZero({ page }: WatchedPage): Promise<number> {
  return await page.evaluate<number>(`(() => {
    const marker = document.querySelectorAll('.u-legend .u-marker')[1];
    if (!marker) return 0;
    const [r, g, b] = getComputedStyle(marker).borderColor.match(/\\d+/g).map(Number);
    const canvas = document.querySelector('.chart canvas');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height * 0.67);
    let count = 0;
    for (let i = 0; i < data.length; i += 4)
      if (data[i + 3] > 200 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 30) count++;
    return count;
  })()`);
}

/** Payouts, replays, conflicts, refusals and slow ones, for the pictures. */
async function someTraffic(url: string, forMs: number): Promise<void> {
  const endMs = performance.now() + forMs;
  for (let i = 0; performance.now() < endMs; i++) {
    const key = `order-${48_000 + Math.floor(i / 2)}`;
    const rate = 20 + 12 * Math.sin(i / 90);
    void withdraw(url, { key, amount: 1 + (i % 11 === 0 ? i : 0), fault: `delay=${40 + (i % 7) * 20}` });
    if (i % 9 === 0) void withdraw(url, { secret: 'sk_unknown' });
    await new Promise((resolve) => setTimeout(resolve, 1000 / rate));
  }
}
