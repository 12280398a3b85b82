import { ConfigError, parseConfig } from '../../src/config/load.ts';

/** The smallest file that is valid. */
export const UPSTREAM = 'upstream: { url: "http://127.0.0.1:9000" }\n';

/** What a text is answered with, a line for each mistake; none for a text that is valid. */
export function mistakesIn(text: string, env: NodeJS.ProcessEnv = {}): string[] {
  try {
    parseConfig(text, env, 'gateway.yaml');
    return [];
  } catch (error) {
    // Anything else would reach the operator as a failure of the gateway, not of the file.
    if (!(error instanceof ConfigError)) throw error;
    return error.message.split('\n');
  }
}
