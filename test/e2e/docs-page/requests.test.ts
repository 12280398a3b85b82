import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import express from 'express';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { bundlePages } from '../../../scripts/pages.ts';
import { docsRoutes } from '../../../src/admin/docs.ts';
import { listen } from '../../../src/gateway/http-server.ts';
import { send } from '../../support/client.ts';
import { temporaryFolder } from '../../support/config.ts';
import { codeOf, consoleOptions } from '../../support/console.ts';
import { rawExchange } from '../../support/raw.ts';
import { openStack, type Stack } from '../../support/stack.ts';

const DOCUMENT = readFileSync(new URL('../../../config/openapi.yaml', import.meta.url));

const HEADERS = {
  'cache-control': 'no-cache',
  etag: expect.stringMatching(/^"[0-9a-f]{64}"$/),
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
};

/** With tokens, and without any. */
let stack: Stack;
let open: Stack;
beforeAll(async () => {
  await bundlePages();
  [stack, open] = await Promise.all([openStack({ admin: consoleOptions }), openStack()]);
});
afterAll(() => Promise.all([stack.close(), open.close()]));

const get = (path: string, headers = {}, method = 'GET') => send(stack.adminUrl, { path, headers, method });

describe('/docs', () => {
  it('serves the page to everybody, in a sandbox that may connect to nothing', async () => {
    for (const path of ['/docs', '/docs/', '/docs?theme=dark']) {
      const { status, headers, body } = await get(path);
      expect([status, headers['content-type']], path).toEqual([200, 'text/html; charset=utf-8']);
      expect(headers).toMatchObject(HEADERS);
      expect(headers['content-security-policy']).toBe(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; " +
          "frame-ancestors 'none'; sandbox allow-scripts allow-downloads",
      );
      // Browsers refuse a page that has both this and a sandbox.
      expect(headers).not.toHaveProperty('cross-origin-opener-policy');
      expect(headers).not.toHaveProperty('set-cookie');
      // Nothing inline, and nothing of another host.
      expect(String(body)).not.toMatch(/<style|style=|<script>|\son\w+=|(?:src|href)="(?!\/docs\/|data:)/);
    }
  });

  it('serves the document byte for byte, and the same as JSON', async () => {
    const yaml = await get('/docs/openapi.yaml');
    expect([yaml.status, yaml.headers['content-type']]).toEqual([200, 'application/yaml']);
    expect(yaml.body.equals(DOCUMENT)).toBe(true);
    const json = await get('/docs/openapi.json');
    expect([json.status, json.headers['content-type']]).toEqual([200, 'application/json; charset=utf-8']);
    expect(json.json()).toEqual(parse(String(DOCUMENT)));
    for (const { headers } of [yaml, json]) {
      expect(headers).toMatchObject({ ...HEADERS, 'cross-origin-opener-policy': 'same-origin' });
      expect(headers['content-security-policy']).toMatch(/^default-src 'none'; script-src 'self'; /);
    }
  });

  it('has every file that the page refers to, under names that browsers keep', async () => {
    const page = String((await get('/docs')).body);
    const paths = [...page.matchAll(/(?:src|href)="(\/docs\/assets\/[^"]+)"/g)].map(([, path = '']) => path);
    expect(paths).toHaveLength(4);
    for (const path of paths) {
      const { status, headers, body } = await get(path);
      expect([status, headers['cache-control']], path).toEqual([200, 'public, max-age=31536000, immutable']);
      // The page has no origin, so its own files are those of another one.
      expect(headers['cross-origin-resource-policy']).toBe('cross-origin');
      const loads = /sourceMappingURL|@import|url\((?!["']?data:)/g;
      if (path.endsWith('.css')) expect(String(body).match(loads), path).toBeNull();
    }
  });

  it('answers 304 while nothing has changed, and HEAD without a body', async () => {
    for (const path of ['/docs', '/docs/openapi.yaml', '/docs/openapi.json']) {
      const { headers, body } = await get(path);
      const again = await get(path, { 'If-None-Match': headers.etag });
      expect([again.status, again.body.length, again.headers.etag], path).toEqual([304, 0, headers.etag]);
      expect((await get(path, { 'If-None-Match': '"another"' })).status).toBe(200);
      const head = await get(path, {}, 'HEAD');
      expect([head.status, head.body.length, head.headers['content-length']]).toEqual([
        200,
        0,
        String(body.length),
      ]);
    }
  });

  it('refuses everything else with a problem document', async () => {
    const [asset = ''] = /\/docs\/assets\/[^"]+/.exec(String((await get('/docs')).body)) ?? [];
    for (const path of ['/docs', '/docs/openapi.yaml', '/docs/openapi.json', asset])
      for (const method of ['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']) {
        const answer = await get(path, {}, method);
        expect([codeOf(answer), answer.headers.allow], `${method} ${path}`).toEqual([
          '405 method_not_allowed',
          'GET, HEAD',
        ]);
      }
    for (const path of [
      '/docs/index.html',
      '/docs/nothing',
      '/docs/openapi.yml',
      '/docs/assets',
      '/docs/assets/',
    ])
      expect(codeOf(await get(path)), path).toBe('404 not_found');
    expect(codeOf(await get('/docs/assets/%ff'))).toBe('400 invalid');
  });

  it('has no path out of its folder', async () => {
    const { port } = new URL(stack.adminUrl);
    for (const path of [
      '/docs/../console/index.html',
      '/docs/%2e%2e/console/index.html',
      '/docs/..%2fconsole%2findex.html',
      '/docs/assets/../index.html',
      '/docs/assets/..%2findex.html',
      '/docs/assets/..%2f..%2fmain.js',
      '/docs/assets/..%5c..%5cmain.js',
      '/docs/assets/%2fetc%2fpasswd',
      '/docs/assets/constructor',
      '/docs/assets/openapi.yaml%00.js',
    ]) {
      const [answer] = await rawExchange(
        Number(port),
        `GET ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`,
      );
      expect([answer?.status, answer?.headers['content-type']], path).toEqual([
        404,
        'application/problem+json',
      ]);
    }
  });

  it('is for every name of the host, because it has nothing to protect', async () => {
    const headers = { Host: 'rebound.example' };
    expect((await get('/docs', headers)).status).toBe(200);
    expect(codeOf(await get('/console/', headers))).toBe('421 wrong_host');
  });

  it('is there without any token, and the start page leads to it', async () => {
    expect((await send(open.adminUrl, { path: '/docs' })).status).toBe(200);
    expect(String((await send(open.adminUrl)).body)).toContain('<a href="/docs">');
  });

  it('says how to build the page while it is not built', async () => {
    const server = createServer(express().use('/docs', docsRoutes(join(temporaryFolder(), 'docs'))));
    const url = `http://127.0.0.1:${await listen(server, '127.0.0.1', 0)}`;
    for (const path of ['/docs', '/docs/openapi.yaml', '/docs/openapi.json']) {
      const answer = await send(url, { path });
      expect(codeOf(answer), path).toBe('503 not_built');
      expect(answer.json().detail).toContain('npm run pages');
    }
    expect(codeOf(await send(url, { path: '/docs/assets/app-12345678.js' }))).toBe('404 not_found');
    server.close();
  });
});
