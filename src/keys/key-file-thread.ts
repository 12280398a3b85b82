/** The thread of `parseKeyFileAside`. */
import { parentPort, workerData } from 'node:worker_threads';
import { KeyFileError, parseKeyFile, type ThreadResult } from './key-file.ts';

function parse(bytes: Uint8Array): ThreadResult {
  try {
    return { kind: 'file', file: parseKeyFile(bytes) };
  } catch (error) {
    if (error instanceof KeyFileError) return { kind: 'mistakes', mistakes: error.mistakes };
    throw error;
  }
}

parentPort?.postMessage(parse(workerData));
