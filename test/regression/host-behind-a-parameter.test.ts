import { expect, onTestFinished, test } from 'vitest';
import { send } from '../support/client.ts';
import { expectNothingSent } from '../support/nothing-sent.ts';
import { openStack } from '../support/stack.ts';

// `/;x/y/v1/index.php` is `//y/v1/index.php` without its parameter: to some readers the path /v1/index.php of the host y.
test.each(['/;x/y/v1/index.php', '/%3bx/y/v1/index.php', '/;/y/v1/index.php'])(
  '%s is refused',
  async (path) => {
    const stack = await openStack();
    onTestFinished(() => stack.close());
    const headers = { Authorization: 'Bearer sk_sandbox_alpha' };
    const answer = await expectNothingSent(stack, () => send(stack.url, { method: 'POST', path, headers }));
    expect([answer.status, answer.json()]).toMatchObject([400, { error: { code: 'invalid_target' } }]);
  },
);
