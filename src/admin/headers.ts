import type { RequestHandler } from 'express';

/**
 * Everything that the page needs comes from its own origin. No inline script or style, no `eval`, no assignment to `innerHTML`,
 * and no frame around the page.
 */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ');

/** The fields of every answer of the admin port, problems included. */
export const HEADERS: Readonly<Record<string, string>> = {
  'Content-Security-Policy': CONTENT_SECURITY_POLICY,
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Permissions-Policy': 'camera=(), geolocation=(), microphone=()',
};

export const securityHeaders: RequestHandler = (_req, res, next) => {
  for (const [name, value] of Object.entries(HEADERS)) res.setHeader(name, value);
  next();
};

const page = (title: string, lines: readonly string[]): string =>
  `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>${title}</title></head>
<body>
<h1>${title}</h1>
${lines.join('\n')}
</body>
</html>
`;

/** What `/` shows when the console is off. */
export const linksPage = (hasRecords: boolean): string =>
  page('oncegate: admin port', [
    '<ul>',
    '<li><a href="/healthz">/healthz</a>: the process lives</li>',
    '<li><a href="/readyz">/readyz</a>: whether it is ready to serve merchants, and why not</li>',
    '<li><a href="/metrics">/metrics</a>: for Prometheus</li>',
    ...(hasRecords ? ['<li>/records: keys in doubt, for programs that have the admin token</li>'] : []),
    '</ul>',
    '<p>The console is off. It needs <code>admin.token</code> or <code>admin.tokens</code> in the configuration, and no <code>admin.console: false</code>.</p>',
    '<p>docs/runbook has a page for each alert, and says how to resolve a key in doubt. docs/metrics.md explains the metrics. docs/operations.md has the sections Health, The log, and The console.</p>',
  ]);

/** What `/console/` shows when the files of the page are not there. */
export const unbuiltPage = (): string =>
  page('oncegate: the console is not built', [
    '<p>The files of the page are missing. In the repository, <code>npm run pages</code> builds them; the npm package and the image contain them.</p>',
    '<p>Meanwhile, <code>oncegate records</code> on the command line lists and resolves keys in doubt.</p>',
  ]);
