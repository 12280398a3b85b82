import type { Guard } from '../guards.ts';

const SESSIONS = {
  file: 'src/auth/open-sessions.ts',
  test: 'test/unit/auth-open-sessions.test.ts',
};

/** Which keys are valid, and who may read the admin port. */
export const accessGuards: readonly Guard[] = [
  {
    file: 'src/admin/options.ts',
    without: 'everyone in the network may read the metrics',
    text: 'if (token !== undefined || isLoopback(host)) return;',
    replacement: 'if (token !== undefined || host !== "") return;',
    test: 'test/unit/config-admin.test.ts',
    named: 'an admin port without a token > is refused on 0.0.0.0',
  },
  {
    file: 'src/auth/file-key-source.ts',
    without: 'an older read of the key file restores revoked keys',
    text: 'this.#reading = this.#reading.then(() => this.#read(options));',
    replacement: 'this.#reading = this.#read(options);',
    test: 'test/unit/auth-file-key-source.test.ts',
    named: 'reload() > never replaces newer keys with older ones',
  },
  {
    ...SESSIONS,
    without: 'a WebSocket stays open when its key has left the key file',
    text: 'keys.onChange(() => this.#check());',
    replacement: '',
    named: 'a session ends at once when the key file > no longer has its key',
  },
  {
    ...SESSIONS,
    without: 'a WebSocket stays open when its key expires',
    text: 'this.#timer ??= setInterval(() => this.#check(), CHECK_EVERY_MS).unref();',
    replacement: '',
    named: 'a session ends within a second after > expiresAt, once',
  },
  {
    ...SESSIONS,
    without: 'a WebSocket outlives a scope of its key',
    text: 'opened.scopes.every((scope) => now.scopes.includes(scope))',
    replacement: 'opened.scopes.length > 0',
    named: 'a session ends at once when the key file > takes a scope from its key',
  },
  {
    file: 'src/cli/serve.ts',
    without: 'SIGHUP ends the process, and leaves keys in doubt',
    text: "process.on('SIGHUP', () => reloadKeys());",
    replacement: '',
    test: 'test/e2e/process/sighup.test.ts',
    named: 'SIGHUP, 1 workers > ends no process and no execution',
  },
];
