/**
 * `npm run soak`: hours of ordinary payments, and checks that nothing was lost, paid twice or left open.
 * Everything runs as real processes on free loopback ports; this process makes the load.
 */
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { judge, quarters } from './soak/judge.ts';
import { Load, ledgerOf } from './soak/load.ts';
import { optionsOf, type SoakOptions, usage } from './soak/options.ts';
import { Processes } from './soak/processes.ts';
import { describeRun, progressLine, type Report } from './soak/report.ts';
import { restingDescriptors, type Sample, Sampler } from './soak/samples.ts';

const MEASURE_MS = 8_000;
const SAMPLE_EVERY_MS = 2_000;
const REPORT_EVERY_MS = 10_000;

const say = (line: string): void => void process.stdout.write(`${line}\n`);

async function soak(options: SoakOptions, stop: AbortSignal): Promise<Report> {
  const processes = await Processes.start(options);
  try {
    const { gateway } = processes;
    const load = new Load(gateway.url, options.retentionMs);
    await load.once();
    const sampler = new Sampler(gateway);
    const descriptorsBefore = await restingDescriptors(gateway.pid);
    const maxRate = options.rate === 'auto' ? await load.maxRate(MEASURE_MS) : undefined;
    const rate = maxRate === undefined ? Number(options.rate) : Math.max(1, Math.floor(maxRate / 2));
    say(`maximum ${maxRate ?? 'not measured'}, keeping ${rate} requests a second on ${options.store}`);
    const samples = await keep(load, rate, options, sampler, stop);
    await load.close();
    const quiet = await sampler.untilQuiet();
    const descriptorsAfter = await restingDescriptors(gateway.pid, descriptorsBefore);
    const ledger = await ledgerOf(processes.sandbox.url);
    const exitCode = await processes.endGateway();
    const facts = { rate, maxRate, samples, quiet, descriptorsBefore, descriptorsAfter, ledger, exitCode };
    const report = { options, ...facts, counts: load.counts, latency: load.latency() };
    return { ...report, quarters: quarters(samples), violations: judge(report) };
  } finally {
    await processes.end();
  }
}

/** Runs the load and takes samples meanwhile. */
async function keep(load: Load, rate: number, options: SoakOptions, sampler: Sampler, stop: AbortSignal) {
  const samples: Sample[] = [];
  const startedMs = performance.now();
  const endMs = startedMs + options.minutes * 60_000;
  load.beginCounting();
  const running = load.run(rate, () => performance.now() < endMs && !stop.aborted);
  let reportedMs = startedMs;
  while (performance.now() < endMs && !stop.aborted) {
    await sleep(Math.min(SAMPLE_EVERY_MS, Math.max(1, endMs - performance.now())), undefined, {
      signal: stop,
    }).catch(() => {});
    const sample = await sampler.take(performance.now() - startedMs);
    samples.push(sample);
    if (performance.now() - reportedMs < REPORT_EVERY_MS) continue;
    reportedMs += REPORT_EVERY_MS;
    say(progressLine(sample, load.counts));
  }
  await running;
  return samples;
}

async function main(args: string[]): Promise<number> {
  const options = optionsOf(args);
  if (options.kind === 'help') {
    say(usage);
    return 0;
  }
  if (options.kind === 'mistake') {
    process.stderr.write(`soak: ${options.message}\n\n${usage}`);
    return 64;
  }
  const stop = new AbortController();
  // Ends the load early; the results so far are judged.
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => stop.abort());
  const report = await soak(options, stop.signal);
  say(describeRun(report));
  if (options.json !== undefined) writeFileSync(options.json, `${JSON.stringify(report, null, 2)}\n`);
  return report.violations.length === 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2)).catch((error: Error) => {
  process.stderr.write(`soak: ${error.message}\n`);
  return 1;
});
