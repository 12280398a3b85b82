import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import { ScrollBox } from './parts.tsx';
import { useColours } from './theme.ts';
import { clock } from './words.ts';

export interface ChartLine {
  label: string;
  /** Class of the colour in style.css: `s1` to `s7`. */
  colour: string;
  /** Lengths of strokes and gaps: colours alone do not tell lines apart for everyone. */
  dash?: number[];
  /** One for each time; null: not known. */
  values: readonly (number | null)[];
}

export interface ChartProps {
  id: string;
  title: string;
  /** Unix milliseconds; another array when there are other points. The lines have a gap where two are further apart than `gapMs`. */
  timesMs: readonly number[];
  gapMs: number;
  lines: readonly ChartLine[];
  /** Default: linear from 0. Logarithmic scales are for values that differ by orders of magnitude. */
  scale?: 'linear' | 'log';
  /** The smallest step of a linear scale's marks. Default 0.1; for numbers of things 1. */
  smallestStep?: number;
  format(value: number): string;
  /** What the chart shows, in a sentence. */
  summary: string;
}

const HEIGHT_PX = 190;
const TABLE_ROWS = 30;
/** Steps whose multiples have no more decimals than they have: 0.1, 0.2, 0.5, 1, ... */
const STEPS = [-1, 0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
/** On a logarithmic scale, smaller values are drawn here. */
const SMALLEST = 0.1;

/** A chart with its legend, which shows the newest values or those under the pointer, and the same as a table. */
export function Chart(props: ChartProps) {
  const { id, title, timesMs, lines, format, summary } = props;
  const [pointed, setPointed] = useState<number>();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const colours = useColours();
  const shape = lines.map(({ label }) => label).join();
  const { data, index } = plottable(props);
  const latest = useRef({ data, index });
  latest.current = { data, index };

  useEffect(() => {
    const element = box.current as HTMLDivElement;
    const options = optionsFor(element, props, (at) =>
      setPointed(at === undefined ? undefined : latest.current.index[at]),
    );
    const drawn = new uPlot(options, latest.current.data, element);
    plot.current = drawn;
    const follow = new ResizeObserver(() => {
      if (element.clientWidth > 0) drawn.setSize({ width: element.clientWidth, height: HEIGHT_PX });
    });
    follow.observe(element);
    return () => {
      follow.disconnect();
      drawn.destroy();
    };
  }, [colours, shape]);

  useEffect(() => plot.current?.setData(data), [timesMs]);

  const at = pointed ?? timesMs.length - 1;
  return (
    <section class="panel chart" aria-labelledby={`${id}-title`} id={id}>
      <h2 id={`${id}-title`}>{title}</h2>
      <ul class="legend">
        {lines.map(({ label, colour, dash, values }) => (
          <li key={label}>
            <svg class={colour} aria-hidden="true">
              <line x1="0" y1="6" x2="24" y2="6" stroke-width="3" stroke-dasharray={dash?.join(' ')} />
            </svg>
            {label} {shown(values[at], format)}
          </li>
        ))}
        <li class="muted">{pointed === undefined ? 'now' : `at ${clock(timesMs[at] ?? 0)}`}</li>
      </ul>
      <div class="canvas" role="img" aria-label={`Chart: ${title}. ${summary}`} ref={box} />
      <p class="muted">{summary}</p>
      <ValueTable {...props} />
    </section>
  );
}

function ValueTable({ title, timesMs, lines, format }: ChartProps) {
  const [isOpen, setOpen] = useState(false);
  const rows = timesMs.map((ms, at) => ({ ms, at })).slice(-TABLE_ROWS);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        Values as a table<span class="unseen">: {title}</span>
      </summary>
      {isOpen && (
        <ScrollBox label={`Values: ${title}`}>
          <table>
            <caption>
              {title}, the newest {TABLE_ROWS} samples, newest first
            </caption>
            <thead>
              <tr>
                <th scope="col">Time</th>
                {lines.map(({ label }) => (
                  <th scope="col" class="number" key={label}>
                    {label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.reverse().map(({ ms, at }) => (
                <tr key={ms}>
                  <th scope="row">{clock(ms)}</th>
                  {lines.map(({ label, values }) => (
                    <td class="number" key={label}>
                      {shown(values[at], format)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </ScrollBox>
      )}
    </details>
  );
}

const shown = (value: number | null | undefined, format: (value: number) => string): string =>
  value === null || value === undefined ? '–' : format(value);

/** uPlot's columns, with an empty row in each gap. `index` has the point that belongs to each row. */
function plottable({ timesMs, gapMs, lines, scale }: ChartProps): {
  data: uPlot.AlignedData;
  index: number[];
} {
  const index: number[] = [];
  const seconds: number[] = [];
  const columns: (number | null)[][] = lines.map(() => []);
  for (const [at, ms] of timesMs.entries()) {
    const before = timesMs[at - 1];
    if (before !== undefined && ms - before > gapMs) {
      index.push(at);
      seconds.push((before + ms) / 2000);
      for (const column of columns) column.push(null);
    }
    index.push(at);
    seconds.push(ms / 1000);
    for (const [line, column] of columns.entries()) {
      const value = lines[line]?.values[at] ?? null;
      column.push(value !== null && scale === 'log' ? Math.max(SMALLEST, value) : value);
    }
  }
  return { data: [seconds, ...columns], index };
}

function optionsFor(
  element: HTMLElement,
  { lines, scale, format, smallestStep = 0.1 }: ChartProps,
  point: (at: number | undefined) => void,
): uPlot.Options {
  const { color, borderTopColor: grid, fontFamily } = getComputedStyle(element);
  const swatches = element.parentElement?.querySelectorAll('.legend svg') ?? [];
  const strokes = [...swatches].map((swatch) => getComputedStyle(swatch).stroke);
  const axis = {
    stroke: color,
    grid: { stroke: grid, width: 1 },
    ticks: { show: false },
    font: `12px ${fontFamily}`,
  };
  const isLog = scale === 'log';
  return {
    width: element.clientWidth || 300,
    height: HEIGHT_PX,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, y: false },
    scales: {
      x: { time: true, range: (_plot, min, max) => [Math.min(min ?? 0, (max ?? 60) - 60), max ?? 60] },
      y: isLog
        ? {
            distr: 3,
            range: (_plot, min, max) => uPlot.rangeLog(min ?? 1, Math.max(max ?? 100, 10), 10, true),
          }
        : { range: (_plot, _min, max) => [0, Math.max(1, (max ?? 0) * 1.1)] },
    },
    axes: [
      { ...axis, values: (_plot, splits) => splits.map((s) => clock(s * 1000)), space: 80, size: 28 },
      {
        ...axis,
        size: 64,
        ...(isLog ? {} : { incrs: STEPS.filter((step) => step >= smallestStep) }),
        // The logarithmic scale has marks that are too dense for labels: uPlot sets those to null.
        values: (_plot, splits) => splits.map((value) => (value === null ? '' : format(value))),
      },
    ],
    series: [
      {},
      ...lines.map(({ label, dash }, at) => ({
        ...{ label, stroke: strokes[at] ?? color, width: 2, points: { show: false } },
        ...(dash ? { dash } : {}),
      })),
    ],
    hooks: { setCursor: [({ cursor }) => point(cursor.idx ?? undefined)] },
  };
}
