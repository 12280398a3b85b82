import { ConfigError, parseConfig } from '../../src/config/load.ts';

/** The smallest file that is valid. */
export const UPSTREAM = 'upstream: { url: "http://127.0.0.1:9000" }\n';

/** The lines of the message about a configuration's mistakes. None if the configuration is valid. */
export function mistakesIn(text: string, env: NodeJS.ProcessEnv = {}): string[] {
  try {
    parseConfig(text, env, 'gateway.yaml');
    return [];
  } catch (error) {
    // Any other error would be a bug: the operator would get a failure of the gateway and not of the file.
    if (!(error instanceof ConfigError)) throw error;
    return error.message.split('\n');
  }
}
