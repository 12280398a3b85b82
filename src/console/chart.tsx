import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import { gatewayNowMs } from './api.ts';
import { type PlacedSample, samples } from './live.ts';
import { ScrollBox } from './parts.tsx';
import { useShared } from './store.ts';
import { clock } from './words.ts';

export interface ChartOptions {
  title: string;
  lines: readonly ChartLine[];
  /** Use it for values above 0 that differ by orders of magnitude. */
  isLogarithmic?: boolean;
}

interface ChartLine {
  label: string;
  /** Colours alone do not tell lines apart for everyone. */
  stroke: keyof typeof DASHES;
  /** The value, or null if it is not known. */
  value(at: PlacedSample, before: PlacedSample): number | null;
}

const HEIGHT_PX = 150;
/** Lengths of strokes and gaps, by the names that CSS has for them. */
const DASHES = { solid: [], dashed: [8, 4], dotted: [2, 3] };
/** Properties of style.css. */
const COLOURS = ['--accent', '--good', '--warn', '--bad', '--muted'];

/** A chart of the samples, whose legend has the values under the pointer, and all its values as a table. */
export function Chart({ title, lines, isLogarithmic = false }: ChartOptions) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const [isOpen, setOpen] = useState(false);
  const all = useShared(samples);
  const later = all.slice(1);
  const columns = lines.map(({ value }) => later.map((at, number) => value(at, all[number] as PlacedSample)));
  useEffect(() => {
    const element = box.current as HTMLDivElement;
    const drawn = new uPlot(optionsFor(element, lines, isLogarithmic), undefined, element);
    drawn.ctx.canvas.role = 'img';
    drawn.ctx.canvas.ariaLabel = `Chart: ${title}`;
    plot.current = drawn;
    const resize = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height: HEIGHT_PX }));
    resize.observe(element);
    const ended = new AbortController();
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => drawn.redraw(), ended);
    return () => {
      ended.abort();
      resize.disconnect();
      drawn.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData([later.map(({ atMs }) => atMs / 1000), ...columns]), [all]);
  return (
    <section class="panel chart" aria-label={title}>
      <h2>{title}</h2>
      <div class="canvas" ref={box} />
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          Values as a table<span class="unseen">: {title}</span>
        </summary>
        <ScrollBox label={`Values: ${title}`}>
          <table>
            <caption>{title}, newest first</caption>
            <thead>
              <tr>
                {['Time', ...lines.map(({ label }) => label)].map((label) => (
                  <th scope="col" key={label}>
                    {label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {(isOpen ? later : [])
                .map(({ atMs, upMs }, number) => (
                  <tr key={upMs}>
                    <th scope="row">{clock(atMs)}</th>
                    {columns.map((column, at) => (
                      <td key={lines[at]?.label}>{inWords(column[number])}</td>
                    ))}
                  </tr>
                ))
                .reverse()}
            </tbody>
          </table>
        </ScrollBox>
      </details>
    </section>
  );
}

const inWords = (value: number | null | undefined): string =>
  value?.toLocaleString('en', { maximumFractionDigits: 2 }) ?? '–';

function optionsFor(box: HTMLElement, lines: readonly ChartLine[], isLogarithmic: boolean): uPlot.Options {
  // A canvas knows neither properties nor light-dark(). uPlot asks for a colour whenever it draws.
  const colour =
    (property: string) =>
    ({ ctx: { canvas } }: uPlot): string => {
      canvas.style.color = `var(${property})`;
      return getComputedStyle(canvas).color;
    };
  const axis = {
    ...{ grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false } },
    ...{ stroke: colour('--muted'), font: `12px ${getComputedStyle(box).fontFamily}` },
  };
  return {
    ...{ width: box.clientWidth, height: HEIGHT_PX },
    legend: {
      markers: {
        stroke: (_plot, at) => `var(${COLOURS[at - 1]})`,
        dash: (_plot, at) => lines[at - 1]?.stroke ?? '',
      },
    },
    cursor: { drag: { x: false, y: false }, y: false },
    scales: {
      // Without any sample, or with one, uPlot's own ranges have no labels, or labels of other days.
      x: {
        range: ({ data: [times = []] }) => {
          const last = times.at(-1) ?? gatewayNowMs() / 1000;
          return [Math.min(times[0] ?? last, last - 60), last];
        },
      },
      y: isLogarithmic
        ? { distr: 3, range: (_plot, min, max) => uPlot.rangeLog(min ?? 1, max ?? 1000, 10, true) }
        : { range: (_plot, _min, max) => [0, Math.max(1, max * 1.1)] },
    },
    // Half of the last time, which is below the right end.
    padding: [null, 32, null, null],
    axes: [
      { ...axis, values: (_plot, seconds) => seconds.map((s) => clock(s * 1000)), space: 80, size: 28 },
      { ...axis, values: (_plot, marks) => marks.map((mark) => mark && inWords(mark)), size: 64 },
    ],
    series: [
      { label: 'Time', value: (_plot, s) => (s === null ? '' : clock(s * 1000)) },
      ...lines.map(({ label, stroke }, at) => ({
        ...{ label, stroke: colour(String(COLOURS[at])), dash: DASHES[stroke], width: 2 },
        ...{ points: { show: false }, spanGaps: true },
        value: (_plot: uPlot, value: number | null) => inWords(value),
      })),
    ],
  };
}
