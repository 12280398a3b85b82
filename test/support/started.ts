import { onTestFinished } from 'vitest';
import { startGateway } from '../../src/cli/serve.ts';
import { newFolder } from './command.ts';
import { type ConfigInput, configFile, parsedConfig } from './config.ts';
import { keptLog } from './log-lines.ts';

/** A gateway that `oncegate serve` would start, in this process: it follows its files, and visits its store. */
export interface Started {
  url: string;
  adminUrl: string;
  /** The configuration file. */
  file: string;
  /** The log's lines so far, parsed. */
  log: Record<string, unknown>[];
  shutdown(): Promise<void>;
}

/** Shut down after the test, if the test does not do it. */
export async function startHere(config: ConfigInput, folder: string = newFolder()): Promise<Started> {
  const file = configFile(config, folder);
  const { log, logger } = keptLog({ level: 'info', formatters: { level: (level) => ({ level }) } });
  const running = await startGateway(parsedConfig(config), { env: process.env, logger }, file);
  let ending: Promise<void> | undefined;
  const shutdown = () => {
    ending ??= running.shutdown();
    return ending;
  };
  onTestFinished(shutdown);
  const [url, adminUrl] = [running.port, running.adminPort].map((port) => `http://127.0.0.1:${port}`);
  return { url: `${url}`, adminUrl: `${adminUrl}`, file, log, shutdown };
}

/** The warnings that it has logged about a part, without the name of that part. */
export const warningsOf = ({ log }: Started, part: string): string[] =>
  log
    .filter(({ level }) => level === 'warn' || level === 'error')
    .map(({ warning }) => `${warning}`)
    .filter((warning) => warning.startsWith(`${part}: `))
    .map((warning) => warning.slice(part.length + 2));
