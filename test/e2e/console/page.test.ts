import { mkdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import express from 'express';
import { afterAll, describe, expect, it } from 'vitest';
import { pageRoutes } from '../../../src/admin/console/page.ts';
import { listen } from '../../../src/gateway/http-server.ts';
import { send } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';

const servers: ReturnType<typeof createServer>[] = [];
afterAll(() => {
  for (const server of servers) server.close();
});

/** The routes of the page, for the bundle in a folder. */
async function serve(folder: string): Promise<string> {
  const server = createServer(express().use('/console', pageRoutes(folder)));
  servers.push(server);
  return `http://127.0.0.1:${await listen(server, '127.0.0.1', 0)}`;
}

describe('the page of the console', () => {
  it('is served with its assets, which browsers keep', async () => {
    const folder = temporaryFolder();
    mkdirSync(join(folder, 'assets'));
    writeFileSync(join(folder, 'index.html'), '<script src="assets/app-1A2B3C4D.js"></script>');
    writeFileSync(join(folder, 'secret-1A2B3C4D.js'), 'not an asset');
    for (const name of ['app-1A2B3C4D.js', 'app-1A2B3C4D.css', 'notes.txt', 'app.js'])
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
      expect(headers['cache-control']).toBe('public, max-age=31536000, immutable');
    }
    for (const name of [
      'notes.txt',
      'app.js',
      '..%2fsecret-1A2B3C4D.js',
      'app-1A2B3C4D.js%00',
      '%2e%2e%2findex.html',
    ])
      expect((await send(url, { path: `/console/assets/${name}` })).status, name).toBe(404);
  });

  it('says how to build it while it is not built, and is there when it is', async () => {
    const folder = join(temporaryFolder(), 'console');
    const url = await serve(folder);
    const { status, body } = await send(url, { path: '/console/' });
    expect([status, String(body)]).toEqual([503, expect.stringContaining('npm run pages')]);
    mkdirSync(join(folder, 'assets'), { recursive: true });
    writeFileSync(join(folder, 'index.html'), 'built');
    expect(String((await send(url, { path: '/console/' })).body)).toBe('built');
  });
});
