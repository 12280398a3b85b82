import { expect, onTestFinished, test } from 'vitest';
import { send } from '../support/client.ts';
import { openStack } from '../support/stack.ts';
import { reachingNobody } from '../support/untouched.ts';

// `/;x/y/v1/index.php` is `//y/v1/index.php` without its parameter: to some readers the path /v1/index.php of the host y.
test.each(['/;x/y/v1/index.php', '/%3bx/y/v1/index.php', '/;/y/v1/index.php'])(
  '%s is refused',
  async (path) => {
    const stack = await openStack();
    onTestFinished(() => stack.close());
    const headers = { Authorization: 'Bearer sk_sandbox_alpha' };
    const answer = await reachingNobody(stack, () => send(stack.url, { method: 'POST', path, headers }));
    expect([answer.status, answer.json()]).toMatchObject([400, { error: { code: 'invalid_target' } }]);
  },
);
