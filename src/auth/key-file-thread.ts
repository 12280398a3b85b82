import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { type KeyFile, KeyFileError, parseKeyFile } from './key-file.ts';

const TASK = 'oncegate: parse a key file';

type Outcome = { kind: 'file'; file: KeyFile } | { kind: 'mistakes'; mistakes: readonly string[] };

/**
 * The same as {@link parseKeyFile}, in another thread: YAML takes about a second for 10,000 keys, for which
 * no request would be answered and no lease renewed.
 */
export function parseKeyFileApart(bytes: Uint8Array): Promise<KeyFile> {
  return new Promise((resolve, reject) => {
    const worker = new Worker(new URL(import.meta.url), { workerData: { task: TASK, bytes } });
    worker.once('message', (outcome: Outcome) => {
      if (outcome.kind === 'file') resolve(outcome.file);
      else reject(new KeyFileError(outcome.mistakes));
    });
    worker.once('error', reject);
    worker.once('exit', (code) => reject(new Error(`the thread that read it ended with code ${code}`)));
    worker.unref();
  });
}

function outcomeOf(bytes: Uint8Array): Outcome {
  try {
    return { kind: 'file', file: parseKeyFile(bytes) };
  } catch (error) {
    if (error instanceof KeyFileError) return { kind: 'mistakes', mistakes: error.mistakes };
    throw error;
  }
}

// This file is the thread's entry, too: its own address is the one that holds in the sources and in the package.
if (!isMainThread && workerData?.task === TASK) parentPort?.postMessage(outcomeOf(workerData.bytes));
