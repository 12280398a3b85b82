/** How metrics are written. Only OpenMetrics has exemplars. */
export type MetricsFormat = 'text' | 'openmetrics';

/** The media type of each format. */
export const METRICS_MEDIA_TYPES: Readonly<Record<MetricsFormat, string>> = {
  text: 'text/plain; version=0.0.4; charset=utf-8',
  openmetrics: 'application/openmetrics-text; version=1.0.0; charset=utf-8',
};
