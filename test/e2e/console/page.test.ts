import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import express from 'express';
import { describe, expect, it } from 'vitest';
import { pageRoutes } from '../../../src/admin/console/page.ts';
import { securityHeaders } from '../../../src/admin/security-headers.ts';
import { httpBackend } from '../../support/backend.ts';
import { send } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { codeOf } from '../../support/console.ts';

/** The routes of the page, for the bundle in a folder. */
const serve = (folder: string) =>
  httpBackend(express().use(securityHeaders).use('/console', pageRoutes(folder)));

describe('the page of the console', () => {
  it('is served with its assets, which browsers keep', async () => {
    const folder = temporaryFolder();
    mkdirSync(join(folder, 'assets', 'inner'), { recursive: true });
    writeFileSync(join(folder, 'index.html'), '<script src="assets/app-1A2B3C4D.js"></script>');
    writeFileSync(join(folder, 'secret.js'), 'not an asset');
    for (const name of ['app-1A2B3C4D.js', 'app-1A2B3C4D.css', '.hidden.js', 'inner/index.html'])
      writeFileSync(join(folder, 'assets', name), name);
    const url = await serve(folder);
    const page = await send(url, { path: '/console/' });
    expect(page).toMatchObject({
      status: 200,
      headers: { 'content-type': 'text/html; charset=utf-8', 'cache-control': 'no-store' },
    });
    expect(String(page.body)).toContain('app-1A2B3C4D.js');
    for (const [name, type] of [
      ['app-1A2B3C4D.js', 'text/javascript; charset=utf-8'],
      ['app-1A2B3C4D.css', 'text/css; charset=utf-8'],
    ]) {
      const { status, headers, body } = await send(url, { path: `/console/assets/${name}` });
      expect([status, headers['content-type'], String(body)]).toEqual([200, type, name]);
      expect(headers).toMatchObject({
        'cache-control': 'public, max-age=31536000, immutable',
        'content-security-policy': expect.stringContaining("default-src 'none'; script-src 'self';"),
        'x-content-type-options': 'nosniff',
      });
    }
    for (const name of [
      ...['none.js', '.hidden.js', 'inner', 'app-1A2B3C4D.js%00', '..%2fsecret.js', '..%5csecret.js'],
      ...['%2e%2e%2findex.html', '%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd', '%2fetc%2fpasswd'],
    ])
      expect(codeOf(await send(url, { path: `/console/assets/${name}` })), name).toBe('404 not_found');
  });

  it('says how to build it while it is not built, and is there when it is', async () => {
    const folder = join(temporaryFolder(), 'console');
    const url = await serve(folder);
    const { status, headers, body } = await send(url, { path: '/console/' });
    expect([status, String(body)]).toEqual([503, expect.stringContaining('npm run pages')]);
    expect(headers['cache-control']).toBe('no-store');
    mkdirSync(folder);
    writeFileSync(join(folder, 'index.html'), 'built');
    expect(String((await send(url, { path: '/console/' })).body)).toBe('built');
  });
});
