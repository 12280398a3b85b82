/** Set-up of each test file, whatever ran in the same process before it. */
import { afterAll } from 'vitest';
import { endFile } from './at-end-of-file.ts';

afterAll(endFile);
